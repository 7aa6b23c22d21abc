"""Memory: where each value lies on its device, page and word, for as long as it lives.

Problem: dynamic storage allocation with known lifetimes, into pages of bounded size. Method:
greedy, each value at the lowest free place over its lifetime, the largest first; where that takes
more than the largest live set, other orders are tried and the best is kept.

    words |  [ b      ][ d    ]
          |  [ a  ]  [ c        ]      c takes the place of a, d that of b
          +----------------------> items of the device's program

Complexity: O(values * overlapping values). Examples: tests/test_plan.py; lower bound: the largest
live set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import PlanError
from ..graph import Graph
from ..types import WORD_BYTES, NDArray
from .machine import ALIGN_BYTES
from .plan import Span
from .split import Outline, value_of
from .support import Support

ALIGN_WORDS = ALIGN_BYTES // WORD_BYTES


def aligned(words: int) -> int:
    """Returns words rounded up to the alignment of every span."""
    return -(-words // ALIGN_WORDS) * ALIGN_WORDS


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value's first and last item in its device's program, both included.

    value: a node, or `scratch_of` one.
    """

    value: int
    words: int
    first: int
    last: int


def scratch_of(node_id: int) -> int:
    """Returns the number that stands for a node's scratch memory; its own inverse."""
    return -1 - node_id


def find_lifetimes(support: Support, outlines: Sequence[Outline], device: int) -> list[Lifetime]:
    """Returns the lifetimes of all values on a device, over all its splits in order."""
    graph = support.graph
    scratch: list[Lifetime] = []
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    position = 0
    for outline in outlines:
        if outline.device != device:
            continue
        for value, _ in outline.entering:
            first[value] = last[value] = position
            position += 1
        for node_id in outline.nodes:
            if node_id not in graph.states:  # these have memory of their own
                first[node_id] = last[node_id] = position
            beside = support.scratch_words(graph.nodes[node_id], device)
            if beside:
                scratch.append(Lifetime(scratch_of(node_id), beside, position, position))
            for operand in graph.nodes[node_id].inputs:
                for value in (operand, graph.root(operand)):
                    if value in first:
                        last[value] = position
                        break
            position += 1
        for value in outline.leaving:
            last[value if value in first else graph.root(value)] = position
            position += 1
    on_host = support.machine.devices[device].kind == "cpu"
    words = {
        v: -(-graph.nodes[v].type.host_bytes // WORD_BYTES)
        if on_host
        else graph.nodes[v].type.words
        for v in first
    }
    return [Lifetime(v, words[v], first[v], last[v]) for v in first] + scratch


def assign_spans(
    lifetimes: Sequence[Lifetime], page_words: int, own_buffers: bool = False
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Returns a span for each value and the page sizes in words; values that live together never
    overlap.

    own_buffers: nor share a page.
    """
    least = largest_live_set(lifetimes)
    best: tuple[dict[int, Span], tuple[int, ...]] | None = None
    for order in _ORDERS:
        found = _assign_in_order(sorted(lifetimes, key=order), page_words, own_buffers)
        if best is None or sum(found[1]) < sum(best[1]):
            best = found
        if sum(best[1]) <= least:
            break
    assert best is not None
    return best


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda t: (-t.words, t.first, t.value),
    lambda t: (t.first, -t.last, -t.words, t.value),
    lambda t: (-t.words * (t.last - t.first + 1), t.first, t.value),
    lambda t: (-t.last, t.first, -t.words, t.value),
    lambda t: (t.first - t.last, -t.words, t.value),
)
"""By size, by birth, by size times life, by death backwards, by life."""


def _assign_in_order(
    lifetimes: Sequence[Lifetime], page_words: int, own_buffers: bool
) -> tuple[dict[int, Span], tuple[int, ...]]:
    spans: dict[int, Span] = {}
    # one row per value placed so far: first and last item, page, first word, end
    placed = np.empty((len(lifetimes), 5), np.int64)
    pages: list[int] = []
    for count, life in enumerate(lifetimes):
        size = aligned(max(life.words, 1))
        if size > page_words:
            raise PlanError(f"[memory] a value of {size * 4} bytes exceeds the page size")
        rows = placed[:count]
        together = rows[(rows[:, 0] <= life.last) & (rows[:, 1] >= life.first), 2:]
        page, offset = _lowest(together, size, len(pages), page_words, own_buffers)
        if page == len(pages):
            pages.append(0)
        pages[page] = max(pages[page], offset + size)
        placed[count] = (life.first, life.last, page, offset, offset + size)
        spans[life.value] = Span(page, offset, life.words)
    return spans, tuple(pages)


def _lowest(
    together: NDArray, size: int, pages: int, page_words: int, own_buffers: bool
) -> tuple[int, int]:
    """Returns the first page and word with room for a size beside what lives at the same time.

    together: rows of page, first word, end.
    """
    for page in range(pages):
        taken = together[together[:, 0] == page, 1:]
        if not len(taken):
            return page, 0
        if own_buffers:
            continue
        taken = taken[np.argsort(taken[:, 0])]
        ends = np.maximum.accumulate(taken[:, 1])
        gaps = np.flatnonzero(taken[:, 0] - np.concatenate(([0], ends[:-1])) >= size)
        at = int(ends[gaps[0] - 1]) if len(gaps) and gaps[0] else 0 if len(gaps) else int(ends[-1])
        if at + size <= page_words:
            return page, at
    return pages, 0


def assign_window(
    values: Iterable[tuple[object, int]], page_words: int, own_buffers: bool = False
) -> tuple[dict[object, Span], tuple[int, ...]]:
    """Returns spans for values that cross, one behind the other and never reused, and the page
    sizes.
    """
    spans: dict[object, Span] = {}
    pages: list[int] = []
    for key, words in values:
        size = max(aligned(words), ALIGN_WORDS)
        if not pages or own_buffers or pages[-1] + size > page_words:
            pages.append(0)
        spans[key] = Span(len(pages) - 1, pages[-1], words)
        pages[-1] += size
    return spans, tuple(pages)


def largest_live_set(lifetimes: Sequence[Lifetime]) -> int:
    """Returns the words that live at once at the worst moment: no assignment needs less."""
    return max(live_words(lifetimes).values(), default=0)


def live_words(lifetimes: Sequence[Lifetime]) -> dict[int, int]:
    """Returns the words that live at each item at which something begins or has just ended."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        size = aligned(max(life.words, 1))
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    steps = sorted(changes)
    return dict(zip(steps, itertools.accumulate(changes[step] for step in steps), strict=True))


def weights_of(graph: Graph, outlines: Sequence[Outline], device: int) -> tuple[int, ...]:
    """Returns the weights and constants that a device's nodes read and that are not streamed in."""
    found: dict[int, None] = {}
    here = [outline for outline in outlines if outline.device == device]
    streamed = {value for outline in here for value, _ in outline.entering}
    for outline in here:
        for node_id in outline.nodes:
            for operand in graph.nodes[node_id].inputs:
                value = value_of(graph, operand, True)
                leaf = graph.nodes[value].op in ("weight", "constant")
                if leaf and value not in streamed:
                    found[value] = None
    return tuple(sorted(found))


def states_of(graph: Graph, outlines: Sequence[Outline], device: int) -> tuple[int, ...]:
    """Returns the states that live on a device."""
    nodes = (n for outline in outlines if outline.device == device for n in outline.nodes)
    return tuple(n for n in nodes if graph.nodes[n].op == "state")


def locations_of(spans: Mapping[int, Span], device: int) -> dict[tuple[int, int], Span]:
    """Returns spans keyed by device and value."""
    return {(device, value): span for value, span in spans.items()}
