"""Barriers: find the items of a recording before which earlier reads and writes must complete.

Problem: dispatches of one submission run concurrently unless a barrier separates them. Method: one
pass that tracks the spans read and written since the last barrier. An item gets a barrier if it
reads a span written since, or writes a span read or written since. A reader of a view reads only
the part of the base that the view covers.

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
    """Return a span of at least one word, because kernels bind empty values, too."""
    return span if span.words else Span(span.page, span.offset, 1)


def split_items(
    graph: Graph, split_draft: SplitDraft, spans: Mapping[int, Span], whole: bool = False
) -> Iterator[Item]:
    """Yield the spans that each item of a split reads and writes, without weights, which are only
    read.

    spans: the places of values on the split's device; empty on the CPU. whole: a reader of a view
    reads all of its base, as buffer validation layers assume.
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
        if nodes[node_id].op == "state":  # resident: no work
            yield (), ()
        else:
            yield known(*nodes[node_id].inputs), known(node_id, scratch_of(node_id))
    for value in split_draft.live_out:
        yield known(value), ()


def find_barriers(items: Iterable[Item], begins: Collection[int] = ()) -> tuple[int, ...]:
    """Return the positions of the items that need a barrier before them.

    begins: the first items of further submissions, which need no barrier.
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
