"""Barriers: before which items of a recording the device must finish what it wrote or read.

Problem: dispatches of one submission run beside each other unless a barrier parts them. Method: one
pass that keeps the spans read and written since the last barrier; an item gets a barrier when it
reads what was written there, or writes what was read or written.

    a: x -> y   b: x -> z   | barrier |   c: y, z -> w        a and b may overlap

Complexity: O(items * log(spans since the last barrier)). Examples: tests/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Graph
from .memory import scratch_of
from .plan import CopyIn, CopyOut, Span
from .words import WordSet

Item = tuple[tuple[Span, ...], tuple[Span, ...]]
"""The activation spans that an item reads and writes."""


def _bound(span: Span) -> Span:
    """An empty value stands for its first word, as it is bound to a kernel all the same."""
    return span if span.words else Span(span.page, span.offset, 1)


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
        if graph.nodes[node_id].op == "state":  # it is there: nothing happens
            items.append(((), ()))
            continue
        reads = tuple(s for i in graph.nodes[node_id].inputs for s in find(i))
        beside = locations.get((device, scratch_of(node_id)))
        items.append((reads, find(node_id) + ((beside,) if beside else ())))
    items += [(find(copy.node), ()) for copy in copies_out]
    return items


def find_barriers(items: Sequence[Item]) -> tuple[int, ...]:
    """Returns the positions of the items before which a barrier stands."""
    out: list[int] = []
    read, written = WordSet(), WordSet()
    for position, (reads, writes) in enumerate(items):
        sources, targets = [_bound(s) for s in reads], [_bound(s) for s in writes]
        hazard = any(written.meets(s) for s in (*sources, *targets))
        if hazard or any(read.meets(s) for s in targets):
            out.append(position)
            read.clear()
            written.clear()
        for span in sources:
            read.add(span)
        for span in targets:
            written.add(span)
    return tuple(out)
