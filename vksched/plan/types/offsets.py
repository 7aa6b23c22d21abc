"""Offsets: the assignment of memory spans to values with lifetimes."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ...common.dtypes import WORD_BYTES
from ...common.errors import PlanError
from ...topology.device_spec import ALIGN_BYTES
from .interval_set import PAGE
from .plan_types import Span

ALIGN_WORDS = ALIGN_BYTES // WORD_BYTES


MAX_PAIRS, MAX_PAIRS_EACH = 50_000, 16
"""Maximum pairs of simultaneously alive values, in all and per value, for the search for better
offsets.
"""


def aligned(words: int) -> int:
    """Return words rounded up to the alignment of every span."""
    return -(-words // ALIGN_WORDS) * ALIGN_WORDS


class Lifetime(NamedTuple):
    """The first and the last step of a value in its device's program, both included.

    value: a node, or the scratch memory of one, see `scratch_of`.
    """

    value: int
    words: int
    first: int
    last: int


def assign_spans(
    lifetimes: Sequence[Lifetime], page_words: int, disable_aliasing: bool = False, enough: int = 0
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Return a span for each value and the page sizes in words. Simultaneously alive values never
    overlap.

    disable_aliasing: True if values never share memory. enough: total words at which the search
    ends.
    """
    best = _assign_by_birth(lifetimes, page_words, disable_aliasing)
    if disable_aliasing or sum(best[1]) <= enough:
        return best
    together = _overlapping(lifetimes)
    if together is None:
        return best
    for order in _ORDERS:
        ranked = sorted(range(len(lifetimes)), key=lambda i: order(lifetimes[i]))
        found = _assign_in_order(lifetimes, ranked, together, page_words)
        if sum(found[1]) < sum(best[1]):
            best = found
        if sum(best[1]) <= enough:
            break
    return best


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda t: (-t.words, t.first, t.value),
    lambda t: (t.first, -t.last, -t.words, t.value),
    lambda t: (-t.words * (t.last - t.first + 1), t.first, t.value),
    lambda t: (-t.last, t.first, -t.words, t.value),
    lambda t: (t.first - t.last, -t.words, t.value),
)
"""By size, by birth, by size times life, by death backwards, by life."""


def _size(words: int, page_words: int) -> int:
    size = aligned(max(words, 1))
    if size > page_words:
        raise PlanError(f"[memory] a value of {size * 4} bytes exceeds the page size")
    return size


def _assign_by_birth(
    lifetimes: Sequence[Lifetime], page_words: int, disable_aliasing: bool
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Assign the smallest sufficient free block to each value in turn, and free it after its last
    step.
    """
    spans: dict[int, Span] = {}
    pages = FreeBlocks(page_words, whole=disable_aliasing)
    ending: list[tuple[int, int, int]] = []
    born = [(life.first, -life.last, -life.words, life.value) for life in lifetimes]
    for first, last, words, value in sorted(born):
        while ending and ending[0][0] < first:
            _, start, size = heappop(ending)
            pages.give(start, size)
        start, size = pages.take(_size(-words, page_words))
        heappush(ending, (-last, start, size))
        spans[value] = Span(*divmod(start, PAGE), -words)
    return spans, tuple(pages.sizes)


class FreeBlocks:
    """The free words of pages that grow on demand.

    A block is its start, in an address space of all pages as in an IntervalSet, and its size.
    whole: True if a page is one block, regardless of the requested size. Complexity: O(log blocks)
    comparisons each, and O(pages) for the growth of a page with several blocks.
    """

    def __init__(self, page_words: int, whole: bool = False) -> None:
        self.sizes: list[int] = []
        self._page_words = page_words
        self._whole = whole
        self._blocks: list[tuple[int, int]] = []  # size and start, in order
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}

    def take(self, size: int) -> tuple[int, int]:
        """Return start and size of a free block, with at least the requested size."""
        at = bisect_left(self._blocks, (size, 0))
        if at == len(self._blocks):
            return self._grow(size)
        found, start = self._blocks.pop(at)
        del self._by_start[start], self._by_end[start + found]
        if found > size and not self._whole:
            self._insert(found - size, start + size)
            found = size
        return start, found

    def give(self, start: int, size: int) -> None:
        """Free a block, and merge it with its free neighbours."""
        after = self._by_start.get(start + size)
        if after is not None:
            self._remove(after, start + size)
            size += after
        before = self._by_end.get(start)
        if before is not None:
            start -= before
            self._remove(before, start)
            size += before
        self._insert(size, start)

    def _grow(self, size: int) -> tuple[int, int]:
        """Take the end of the page that needs the fewest additional words."""
        page, free = self._largest_page() if self._whole else self._freest_end(size)
        if page is None:
            self.sizes.append(size)
            return (len(self.sizes) - 1) * PAGE, size
        start = page * PAGE + self.sizes[page] - free
        if free:
            self._remove(free, start)
        self.sizes[page] += size - free
        return start, size

    def _largest_page(self) -> tuple[int | None, int]:
        """Return the first of the largest free pages and its words, if a page is one block."""
        if not self._blocks:
            return None, 0
        largest, _ = self._blocks[-1]
        _, start = self._blocks[bisect_left(self._blocks, (largest, 0))]
        return start // PAGE, largest

    def _freest_end(self, size: int) -> tuple[int | None, int]:
        """Return the page with the most free words at its end that may grow to hold a block, and
        the number of these words.
        """
        best: int | None = None
        most = -1
        for page, words in enumerate(self.sizes):
            free = self._by_end.get(page * PAGE + words, 0)
            if free > most and words - free + size <= self._page_words:
                best, most = page, free
        return best, max(most, 0)

    def _insert(self, size: int, start: int) -> None:
        insort(self._blocks, (size, start))
        self._by_start[start] = self._by_end[start + size] = size

    def _remove(self, size: int, start: int) -> None:
        del self._blocks[bisect_left(self._blocks, (size, start))]
        del self._by_start[start], self._by_end[start + size]


def _overlapping(lifetimes: Sequence[Lifetime]) -> list[list[int]] | None:
    """Return, for each lifetime, the overlapping others, or None if they are too many."""
    out: list[list[int]] = [[] for _ in lifetimes]
    live: list[tuple[int, int]] = []
    pairs, most = 0, max(MAX_PAIRS, MAX_PAIRS_EACH * len(lifetimes))
    for at in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
        while live and live[0][0] < lifetimes[at].first:
            heappop(live)
        pairs += len(live)
        if pairs > most:
            return None
        for _, other in live:
            out[at].append(other)
            out[other].append(at)
        heappush(live, (lifetimes[at].last, at))
    return out


def _assign_in_order(
    lifetimes: Sequence[Lifetime], order: Sequence[int], together: list[list[int]], page_words: int
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Assign the lowest offset that is free during its lifetime to each value in turn.

    together: for each lifetime, the overlapping others.
    """
    spans: dict[int, Span] = {}
    placed: list[tuple[int, int, int] | None] = [None] * len(lifetimes)  # page, first word, end
    pages: list[int] = []
    for at in order:
        life = lifetimes[at]
        size = _size(life.words, page_words)
        page = offset = 0
        for where, start, end in sorted([p for i in together[at] if (p := placed[i])]):
            if where > page and offset + size > page_words:
                page, offset = page + 1, 0
            if where > page or start - offset >= size:
                break
            offset = max(offset, end)
        if offset + size > page_words:
            page, offset = page + 1, 0
        if page == len(pages):
            pages.append(0)
        pages[page] = max(pages[page], offset + size)
        placed[at] = page, offset, offset + size
        spans[life.value] = Span(page, offset, life.words)
    return spans, tuple(pages)


def largest_live_set(lifetimes: Sequence[Lifetime]) -> int:
    """Return the maximum number of simultaneously alive words: a lower bound on any assignment."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        size = aligned(max(life.words, 1))
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)
