"""Barriers: before which items of a recording the device must finish what it wrote or read.

Problem: dispatches of one submission run beside each other unless a barrier parts them. Method: one
pass that keeps the spans read and written since the last barrier; an item gets a barrier when it
reads what was written there, or writes what was read or written.

    a: x -> y   b: x -> z   | barrier |   c: y, z -> w        a and b may overlap

Complexity: O(items * spans since the last barrier). Examples: tests/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Graph
from .plan import CopyIn, CopyOut, Span

Item = tuple[tuple[Span, ...], tuple[Span, ...]]
"""The activation spans that an item reads and writes."""


def overlap(a: Span, b: Span) -> bool:
    """Returns whether two spans share a word; an empty one stands for its first word, as it is
    bound to a kernel all the same.
    """
    a_end, b_end = a.offset + max(a.words, 1), b.offset + max(b.words, 1)
    return a.page == b.page and a.offset < b_end and b.offset < a_end


def split_items(
    graph: Graph,
    device: int,
    copies_in: Sequence[CopyIn],
    nodes: Sequence[int],
    copies_out: Sequence[CopyOut],
    locations: Mapping[tuple[int, int], Span],
) -> list[Item]:
    """Returns what each item of a split reads and writes; weights are only read, so they do not
    count.
    """

    def find(node_id: int) -> tuple[Span, ...]:
        span = locations.get((device, node_id)) or locations.get((device, graph.root(node_id)))
        return (span,) if span else ()

    items: list[Item] = [((), find(copy.node)) for copy in copies_in]  # nothing on the CPU
    for node_id in nodes:
        reads = tuple(s for i in graph.nodes[node_id].inputs for s in find(i))
        items.append((reads, find(node_id)))
    items += [(find(copy.node), ()) for copy in copies_out]
    return items


def find_barriers(items: Sequence[Item]) -> tuple[int, ...]:
    """Returns the positions of the items before which a barrier stands."""
    out: list[int] = []
    read: list[Span] = []
    written: list[Span] = []
    for position, (reads, writes) in enumerate(items):
        hazard = any(overlap(r, w) for r in reads for w in written) or any(
            overlap(w, other) for w in writes for other in (*read, *written)
        )
        if hazard:
            out.append(position)
            read, written = [], []
        read.extend(reads)
        written.extend(writes)
    return tuple(out)
