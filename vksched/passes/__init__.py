"""Graph passes: rewrites that return an equivalent graph with less work.

    simplify               fold constants, merge equal calls, remove dead nodes and no-ops
    fuse_patterns          fuse attention, norms, activations and biases; fold a scale and a shift
                           per channel into convolution weights and bias
    convert_weights_to_fp16
                           store weights as float16 for matmuls of few rows, if their precision
                           mode allows it
    fuse_cache_writes      round new rows of a KV cache where they are written
    fuse_dequantize        let matmuls and gathers read quantized weights directly
    fuse_sibling_linears   merge single-row matmuls of one input, with their norm and activation
    fuse_rope              let the merged matmul of a prompt rotate q and k, and store them by heads
    convolve               compute 3 x 3 convolutions by Winograd's algorithm
    fuse_elementwise_ops   fuse consecutive elementwise ops
    fuse_epilogues         fuse elementwise ops into the matmul or convolution before them
    store_rows_as_fp16     store the results of norms and gates as float16 for products that
                           convert them to it
    store_heads_as_fp16    store q, k and v of a prompt as float16 for attention and a KV cache

A pass is a function (graph, constraints) -> graph. Each node of the new graph has the name of the
node whose value it computes. `Graph.aliases` maps the names of removed nodes to their replacements,
so that overrides, `explain` and errors still find them. Time is linear in the nodes. Repeated
layers are collapsed first (collapse_layers.py).

Results equal those of the original graph up to rounding, with two exceptions, both of which are
more accurate: a fused elementwise op of float16, or a matmul with an epilogue, computes in float32
and rounds once at the end; fused attention ignores a masked key, or one of weight 0, even if it is
NaN or infinite. `Scheduler(optimize=False)` disables all passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..ir.graph import Graph
from ..ir.op import EPILOGUE, all_ops
from .collapse_layers import WeightInspected, collapse_repeated_layers
from .constant_folding import fold_constants
from .constraints import RewriteConstraints
from .fp16_heads import store_heads_as_fp16
from .fp16_rows import store_rows_as_fp16
from .fp16_weights import convert_weights_to_fp16
from .fuse_activations import to_gelu, to_hard_swish, to_silu
from .fuse_attention import fold_output_transpose, fold_transpose_into_attention, to_attention
from .fuse_cache_writes import fuse_cache_writes
from .fuse_conv_affine import fold_scale, fold_shift
from .fuse_dequantize import fuse_dequantize
from .fuse_elementwise import fuse_elementwise_ops
from .fuse_epilogues import fuse_epilogues
from .fuse_linears import fuse_sibling_linears
from .fuse_norms import add_bias, scale_norm, shift_norm, to_norm
from .fuse_rope import fuse_rope
from .rewrite import Rewriter, Rule, Rules, rewrite
from .simplify import SIMPLER
from .winograd import convolve

__all__ = [
    "PASSES",
    "Pass",
    "Rewriter",
    "Rule",
    "Rules",
    "RewriteConstraints",
    "fuse_elementwise_ops",
    "fuse_epilogues",
    "optimize",
    "rewrite",
    "simplify",
]

Pass = Callable[[Graph, RewriteConstraints], Graph]

PATTERNS: Rules = {
    "mul": (fold_scale, to_gelu, to_silu, to_hard_swish, to_norm, scale_norm),
    "div": (to_hard_swish, to_norm),
    "add": (fold_shift, shift_norm, add_bias),
    "matmul": (to_attention,),
    "attention": (fold_transpose_into_attention,),
    "attention_with_kvcache": (fold_transpose_into_attention,),
    "transpose": (fold_output_transpose,),
}
"""The rules of each pattern, by the last op of the pattern."""


def simplify(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Fold constants, merge equal calls, and remove ops without effect."""
    # custom ops of importers are never folded
    rules = {name: (fold_constants, *SIMPLER.get(name, ())) for name in all_ops()}
    return rewrite(graph, rules, constraints)


def fuse_patterns(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Fuse the small ops that model files write attention, norms and activations as."""
    return rewrite(graph, PATTERNS, constraints)


PASSES: tuple[Pass, ...] = (
    simplify,
    fuse_patterns,
    convert_weights_to_fp16,
    fuse_cache_writes,
    fuse_dequantize,
    fuse_sibling_linears,
    fuse_rope,
    convolve,
    fuse_elementwise_ops,
    fuse_epilogues,
    store_rows_as_fp16,
    store_heads_as_fp16,
)
"""The passes in the order in which they run."""


def optimize(graph: Graph, constraints: RewriteConstraints | None = None) -> Graph:
    """Return an equivalent graph that takes less work.

    A graph that already has epilogues is returned unchanged, because rules assume that the result
    of a node is that of its op.

    Parameters
    ----------
    graph
        The graph to optimize.
    constraints
        Nodes to preserve, and the limits of devices; by default none.
    """
    if any(EPILOGUE in node.attrs for node in graph.nodes):
        return graph
    result = _through_passes(graph, constraints or RewriteConstraints())
    return result if result is graph else result.verify()


def _through_passes(graph: Graph, constraints: RewriteConstraints) -> Graph:
    collapsed = collapse_repeated_layers(graph, constraints)
    if collapsed is not None:
        with suppress(WeightInspected):
            whole = collapsed.expand(_through_passes(collapsed.graph, constraints))
            if whole is not None:
                return whole
    propagated, result = constraints.propagate_pins(graph), graph
    for apply_pass in PASSES:
        result = apply_pass(result, propagated)
    return result
