"""Barriers: before which items of a recording the device must finish what it wrote or read.

Problem: dispatches of one submission run beside each other unless a barrier parts them. Method: one
pass that keeps the spans read and written since the last barrier; an item gets a barrier when it
reads what was written there, or writes what was read or written. Who reads a view reads no more of
its root than the view has.

    a: x -> y   b: x -> z   | barrier |   c: y, z -> w        a and b may overlap

Complexity: O(items * log(spans since the last barrier)). Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ...ir.graph import Graph
from ...plan.types.interval_set import IntervalSet
from ...plan.types.plan_types import Span, scratch_of
from ...plan.types.split_draft import SplitDraft

Item = tuple[tuple[Span, ...], tuple[Span, ...]]
"""The activation spans that an item reads and writes."""


def _bound(span: Span) -> Span:
    """An empty value stands for its first word, as it is bound to a kernel all the same."""
    return span if span.words else Span(span.page, span.offset, 1)


def split_items(
    graph: Graph, split_draft: SplitDraft, spans: Mapping[int, Span], whole: bool = False
) -> Iterator[Item]:
    """Yield what each item of a split reads and writes; weights are only read, so they do not
    count.

    spans: where the values on the split's device are; on the CPU nothing has a place. whole: who
    reads a view counts as reading all of its root, as the layer that validates buffers sees it.
    """
    nodes, views, words = graph.nodes, graph.views, graph.words

    def place(value: int) -> Span | None:
        own = spans.get(value)
        if own is not None or value not in views:
            return own
        root, offset = views[value]
        held = spans.get(root)
        return held if whole else held and Span(held.page, held.offset + offset, words[value])

    def known(*values: int) -> tuple[Span, ...]:
        return tuple([_bound(span) for span in map(place, values) if span is not None])

    for value, _ in split_draft.live_in:
        yield (), known(value)
    for node_id in split_draft.nodes:
        if nodes[node_id].op == "state":  # it is there: nothing happens
            yield (), ()
        else:
            yield known(*nodes[node_id].inputs), known(node_id, scratch_of(node_id))
    for value in split_draft.live_out:
        yield known(value), ()


def find_barriers(items: Iterable[Item], begins: Collection[int] = ()) -> tuple[int, ...]:
    """Return the positions of the items before which a barrier stands.

    begins: those before which another submission begins, which needs none.
    """
    out: list[int] = []
    read, written = IntervalSet(), IntervalSet()
    for position, (reads, writes) in enumerate(items):
        if position in begins:
            read.clear()
            written.clear()
        if written.meets(*reads, *writes) or read.meets(*writes):
            out.append(position)
            read.clear()
            written.clear()
        read.add(*reads)
        written.add(*writes)
    return tuple(out)
