"""Passes: each takes a graph, and returns one of the same results that takes less work.

    simplify: folds constants, makes equal calls one, drops nodes without effect or readers
    fuse_patterns: makes one op of small ones: attention, norms, activations, a bias; convolutions
    take
        scale and shift of their channels into weights and bias
    convert_weights_to_fp16: holds weights as float16 for products of few rows whose precision
    allows it fuse_dequantize: lets products and look-ups read weights of few bits as they are
    fuse_sibling_linears: makes one of products of one row that read the same, with what comes
    before them convolve: gives convolutions with known weights the form that takes fewest products
    fuse_chains: makes one node of elementwise ops behind each other fuse_epilogues: makes
    elementwise ops behind a product or convolution a part of it

A pass is a function (graph, constraints) -> graph. Each node of the new graph has the name of the
node whose value it is; `Graph.merged` tells which node stands for the names that are gone, so that
overrides, `explain` and errors still find them. Time is linear in the nodes; of layers that are all
alike only a few are looked at (layers.py).

Results are those of the graph as it was written up to rounding, with two exceptions, in which they
are nearer to the real numbers: a fused elementwise op of float16, or a product with what follows
it, is computed in float32 and rounded once at its end, and recognised attention takes a hidden key,
or one of weight 0, for not there, even if it is NaN or infinite. `Scheduler(optimize=False)` runs
the graph as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..ir.graph import Graph
from ..ir.op import EPILOGUE, all_ops
from .collapse_layers import WeightInspected, collapse_repeated_layers
from .constant_folding import fold_constants
from .constraints import RewriteConstraints
from .fp16_weights import convert_weights_to_fp16
from .fuse_activations import to_gelu, to_hard_swish, to_silu
from .fuse_attention import fold_output_transpose, fold_transpose_into_attention, to_attention
from .fuse_conv_affine import fold_scale, fold_shift
from .fuse_dequantize import fuse_dequantize
from .fuse_elementwise import fuse_elementwise_ops
from .fuse_epilogues import fuse_epilogues
from .fuse_linears import fuse_sibling_linears
from .fuse_norms import add_bias, scale_norm, shift_norm, to_norm
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
    "fuse_chains",
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
"""By the op at the end of each pattern, the rules that look for it."""


def simplify(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Folds constants, makes equal calls one, and leaves out what changes nothing."""
    # ops of importers come and go, and are never folded
    rules = {name: (fold_constants, *SIMPLER.get(name, ())) for name in all_ops()}
    return rewrite(graph, rules, constraints)


def fuse_patterns(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Make one op of the small ops by which files write it out."""
    return rewrite(graph, PATTERNS, constraints)


PASSES: tuple[Pass, ...] = (
    simplify,
    fuse_patterns,
    convert_weights_to_fp16,
    fuse_dequantize,
    fuse_sibling_linears,
    convolve,
    fuse_elementwise_ops,
    fuse_epilogues,
)
"""In the order in which they run."""


def optimize(graph: Graph, constraints: RewriteConstraints | None = None) -> Graph:
    """Return a graph of the same outputs, inputs and states that takes less work.

    One with epilogues has been here, and stays as it is: rules take an op's result for its own.
    """
    if any(EPILOGUE in node.attrs for node in graph.nodes):
        return graph
    made = _through_passes(graph, constraints or RewriteConstraints())
    return made if made is graph else made.verify()


def _through_passes(graph: Graph, constraints: RewriteConstraints) -> Graph:
    collapsed = collapse_repeated_layers(graph, constraints)
    if collapsed is not None:
        with suppress(WeightInspected):
            whole = collapsed.expand(_through_passes(collapsed.graph, constraints))
            if whole is not None:
                return whole
    wanted, made = constraints.propagate_pins(graph), graph
    for each in PASSES:
        made = each(made, wanted)
    return made
