"""Interval sets: sets of words in pages, as sorted ranges, with queries for overlap.

Problem: thousands of spans, with repeated queries for overlaps. Method: disjoint ranges in order,
all pages in one address space, found by bisection; adjacent ranges are merged.
Complexity: O(log n) for a query, O(n) in the worst case for an insertion. Examples:
tests/planner/test_plan_memory.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .plan_types import Span

PAGE = 1 << 40
"""Words from one page to the next in the common address space."""


class IntervalSet:
    """A set of words, added span by span."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def meets(self, *spans: Span) -> bool:
        """Return True if any word of the spans is in the set. Empty spans have none."""
        starts = self._starts
        if not starts:
            return False
        for span in spans:
            start = span.page * PAGE + span.offset
            at = bisect_left(starts, start + span.words)
            if at and self._ends[at - 1] > start and span.words:
                return True
        return False

    def add(self, *spans: Span) -> None:
        """Add the words of spans."""
        starts, ends = self._starts, self._ends
        for span in spans:
            if not span.words:
                continue
            start = span.page * PAGE + span.offset
            end = start + span.words
            first, last = bisect_left(ends, start), bisect_right(starts, end)
            if first == last:
                starts.insert(first, start)
                ends.insert(first, end)
            else:
                end = max(end, ends[last - 1])
                starts[first] = min(start, starts[first])
                ends[first] = end
                del starts[first + 1 : last], ends[first + 1 : last]


class Owners:
    """The value that owns each word. The last writer is the owner."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._items: list[tuple[int, int]] = []

    def take(self, span: Span, value: int) -> list[int]:
        """Make a value the owner of a span, and return the previous owners of its words."""
        if span.words == 0:
            return []
        start = span.page * PAGE + span.offset
        end = start + span.words
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._items[first][0] <= start:
            first += 1
        last = bisect_left(self._starts, end)
        before = [owner for _, owner in self._items[first:last]]
        self._starts[first:last] = [start]
        self._items[first:last] = [(end, value)]
        return before
