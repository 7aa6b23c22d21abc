"""Passes: a graph as the user wrote it in, one of the same results that takes less work out.

    simplify      constants folded, equal calls made one, what changes nothing left out
    convolve      convolutions with known weights in the form that takes fewest products
    fuse_chains   elementwise ops behind each other made one node

A pass is a function (graph, wishes) -> graph. Each node of the new graph has the name of the node
whose value it is; `Graph.merged` tells which node stands for the names that are gone, so that
overrides, `explain` and errors still find them. Time is linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from ..graph import Graph
from ..ops.op import all_ops
from .chains import fuse_chains
from .convolve import convolve
from .fold import fold_constants
from .rewrite import Rewriter, Rule, Rules, rewrite
from .simplify import SIMPLER
from .wishes import Wishes

__all__ = [
    "PASSES",
    "Pass",
    "Rewriter",
    "Rule",
    "Rules",
    "Wishes",
    "fuse_chains",
    "optimize",
    "rewrite",
    "simplify",
]

Pass = Callable[[Graph, Wishes], Graph]


def simplify(graph: Graph, wishes: Wishes) -> Graph:
    """Folds constants, makes equal calls one, and leaves out what changes nothing."""
    # ops of importers come and go, and are never folded
    rules = {name: (fold_constants, *SIMPLER.get(name, ())) for name in all_ops()}
    return rewrite(graph, rules, wishes)


PASSES: tuple[Pass, ...] = (simplify, convolve, fuse_chains)
"""In the order in which they run."""


def optimize(graph: Graph, wishes: Wishes | None = None) -> Graph:
    """Returns a graph of the same outputs, inputs and states that takes less work."""
    wanted = (wishes or Wishes()).with_pulled(graph)
    made = graph
    for each in PASSES:
        made = each(made, wanted)
    return made if made is graph else made.verify()
