"""Fuse cache writes: new rows of a KV cache are rounded where they are written.

    dynamic_update_slice(cache, cast(row), start)    is    dynamic_update_slice(cache, row, start)

A decode step casts a row of keys and one of values in each layer for a cache of float16. On GPUs
the dispatches of these casts take longer than the casts. Longer steps keep the cast, because the
rows stay in memory until the end of the run. Complexity: O(nodes). Examples:
tests/passes/test_fuse_cache_writes.py.
"""

from __future__ import annotations

from ..common.dtypes import FLOAT16, FLOAT32
from ..ir.graph import Graph, Node
from .constraints import RewriteConstraints
from .rewrite import Rewriter, rewrite


def fuse_cache_writes(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Let single rows be rounded to float16 by the op that writes them."""
    if constraints.limits is None or constraints.limits.software:
        return graph
    return rewrite(graph, {"dynamic_update_slice": (_round_in_place,)}, constraints)


def _round_in_place(r: Rewriter, node: Node) -> int | None:
    data, rows, start = node.inputs
    cast, axis = r[rows], node.attrs.as_int("axis")
    if cast.op != "cast" or cast.type.dtype != FLOAT16 or cast.type.shape[axis] != 1:
        return None
    if r[cast.inputs[0]].type.dtype != FLOAT32 or not r.has_single_use(rows):
        return None
    attrs = dict(node.attrs) | {k: v for k, v in cast.attrs.items() if k == "overflow_nan"}
    return r.emit("dynamic_update_slice", (data, cast.inputs[0], start), attrs)
