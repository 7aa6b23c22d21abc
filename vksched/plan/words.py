"""Sets of words in pages, as sorted ranges: is any word of a span among them?

Problem: thousands of spans, asked for overlaps again and again. Method: per page disjoint ranges in
order, found by bisection; ranges that touch are merged. Complexity: O(log n) to ask, O(n) in the
worst case to add. Examples: tests/test_plan_memory.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .plan import Span


class WordSet:
    """Words, added span by span."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def meets(self, *spans: Span) -> bool:
        """Returns whether a word of any span is in the set; empty spans have none."""
        if not self._starts:
            return False
        for span in spans:
            starts = self._starts.get(span.page)
            if starts and span.words:
                at = bisect_left(starts, span.offset + span.words)
                if at and self._ends[span.page][at - 1] > span.offset:
                    return True
        return False

    def add(self, *spans: Span) -> None:
        """Adds the words of spans."""
        for span in spans:
            if span.words == 0:
                continue
            starts = self._starts.setdefault(span.page, [])
            ends = self._ends.setdefault(span.page, [])
            start, end = span.offset, span.offset + span.words
            first = bisect_left(ends, start)
            last = bisect_right(starts, end)
            if first < last:
                start, end = min(start, starts[first]), max(end, ends[last - 1])
            starts[first:last] = [start]
            ends[first:last] = [end]


class Owners:
    """Which value each word belongs to; the last one written owns it."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._items: dict[int, list[tuple[int, int]]] = {}

    def take(self, span: Span, value: int) -> list[int]:
        """Gives the words of a span to a value; returns the values that owned any of them."""
        if span.words == 0:
            return []
        starts = self._starts.setdefault(span.page, [])
        items = self._items.setdefault(span.page, [])
        first = bisect_right(starts, span.offset) - 1
        if first < 0 or items[first][0] <= span.offset:
            first += 1
        last = bisect_left(starts, span.offset + span.words)
        before = [owner for _, owner in items[first:last]]
        starts[first:last] = [span.offset]
        items[first:last] = [(span.offset + span.words, value)]
        return before
