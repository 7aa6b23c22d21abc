"""Sets of words in pages, as sorted ranges: is any word of a span among them?

Problem: thousands of spans, asked for overlaps again and again. Method: disjoint ranges in order,
all pages in one row, found by bisection; ranges that touch are merged. Complexity: O(log n) to ask,
O(n) in the worst case to add. Examples: tests/planner/test_plan_memory.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .plan_types import Span

PAGE = 1 << 40
"""Words from one page to the next where all are counted as one row."""


class IntervalSet:
    """Words, added span by span."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def meets(self, *spans: Span) -> bool:
        """Return whether a word of any span is in the set; empty spans have none."""
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
    """Which value each word belongs to; the last one written owns it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._items: list[tuple[int, int]] = []

    def take(self, span: Span, value: int) -> list[int]:
        """Give the words of a span to a value; returns the values that owned any of them."""
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
