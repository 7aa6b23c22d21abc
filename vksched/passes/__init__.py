"""Passes: each takes a graph, and returns one of the same results that takes less work.

    simplify: folds constants, makes equal calls one, drops nodes without effect or readers
    recognise: makes one op of small ones: attention, norms, activations, a bias; convolutions take
        scale and shift of their channels into weights and bias
    hold_halves: holds weights as float16 for products of few rows whose precision allows it
    read_packed: lets products and look-ups read weights of few bits as they are
    put_beside: makes one of products of one row that read the same, with what comes before them
    convolve: gives convolutions with known weights the form that takes fewest products
    fuse_chains: makes one node of elementwise ops behind each other
    fuse_epilogues: makes elementwise ops behind a product or convolution a part of it

A pass is a function (graph, wishes) -> graph. Each node of the new graph has the name of the node
whose value it is; `Graph.merged` tells which node stands for the names that are gone, so that
overrides, `explain` and errors still find them. Time is linear in the nodes; of layers that are all
alike only a few are looked at (layers.py).

Results are those of the graph as it was written up to rounding, with two exceptions, in which they
are nearer to the real numbers: a fused elementwise op of float16, or a product with what follows it, is computed
in float32 and rounded once at its end, and recognised attention takes a hidden key, or one of
weight 0, for not there, even if it is NaN or infinite. `Scheduler(optimize=False)` runs the graph
as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..ir.graph import Graph
from ..ir.op import EPILOGUE, all_ops
from .collapse_layers import LookedInside, shorten
from .constant_folding import fold_constants
from .constraints import Wishes
from .fp16_weights import hold_halves
from .fuse_activations import to_gelu, to_hard_swish, to_silu
from .fuse_attention import read_by_length, to_attention, write_by_length
from .fuse_conv_affine import fold_scale, fold_shift
from .fuse_dequantize import read_packed
from .fuse_elementwise import fuse_elementwise_ops
from .fuse_epilogues import fuse_epilogues
from .fuse_linears import put_beside
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
    "Wishes",
    "fuse_chains",
    "fuse_epilogues",
    "optimize",
    "rewrite",
    "simplify",
]

Pass = Callable[[Graph, Wishes], Graph]

PATTERNS: Rules = {
    "mul": (fold_scale, to_gelu, to_silu, to_hard_swish, to_norm, scale_norm),
    "div": (to_hard_swish, to_norm),
    "add": (fold_shift, shift_norm, add_bias),
    "matmul": (to_attention,),
    "attention": (read_by_length,),
    "attention_with_kvcache": (read_by_length,),
    "transpose": (write_by_length,),
}
"""By the op at the end of each pattern, the rules that look for it."""


def simplify(graph: Graph, wishes: Wishes) -> Graph:
    """Folds constants, makes equal calls one, and leaves out what changes nothing."""
    # ops of importers come and go, and are never folded
    rules = {name: (fold_constants, *SIMPLER.get(name, ())) for name in all_ops()}
    return rewrite(graph, rules, wishes)


def recognise(graph: Graph, wishes: Wishes) -> Graph:
    """Makes one op of the small ops by which files write it out."""
    return rewrite(graph, PATTERNS, wishes)


PASSES: tuple[Pass, ...] = (
    simplify,
    recognise,
    hold_halves,
    read_packed,
    put_beside,
    convolve,
    fuse_elementwise_ops,
    fuse_epilogues,
)
"""In the order in which they run."""


def optimize(graph: Graph, wishes: Wishes | None = None) -> Graph:
    """Returns a graph of the same outputs, inputs and states that takes less work.

    One with epilogues has been here, and stays as it is: rules take an op's result for its own.
    """
    if any(EPILOGUE in node.attrs for node in graph.nodes):
        return graph
    made = _through_passes(graph, wishes or Wishes())
    return made if made is graph else made.verify()


def _through_passes(graph: Graph, wishes: Wishes) -> Graph:
    short = shorten(graph, wishes)
    if short is not None:
        with suppress(LookedInside):
            whole = short.lengthen(_through_passes(short.graph, wishes))
            if whole is not None:
                return whole
    wanted, made = wishes.with_pulled(graph), graph
    for each in PASSES:
        made = each(made, wanted)
    return made
