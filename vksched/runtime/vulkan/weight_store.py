"""WeightStore: weights on a Vulkan device, uploaded once, shared by plans, and freed with the last
plan that uses them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ...common.dtypes import (
    Progress,
)
from ...plan.types.offsets import ALIGN_WORDS, aligned
from ...plan.types.plan_types import Span
from ...storage.lazy_array import ArrayLike
from .buffers import Buffer
from .context import Context
from .staging import WRITERS, write_new
from .word_view import _words


@dataclass(slots=True)
class _Page:
    buffer: Buffer
    users: int


class WeightStore:
    """The weight pages of one device."""

    def __init__(self, context: Context, page_bytes: int) -> None:
        self._context = context
        self._page_words = page_bytes // 4
        self._pages: dict[int, _Page] = {}
        self._spans: dict[object, Span] = {}
        self._next_page = 0
        self._lock = threading.RLock()

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights on the device, including alignment."""
        with self._lock:
            return sum(aligned(span.words) * 4 for span in self._spans.values())

    def holds(self, key: object) -> bool:
        """Return True if a weight is on the device now."""
        return key in self._spans  # without the lock, which a long upload by another thread holds

    def span(self, key: object) -> Span:
        return self._spans[key]

    def buffer(self, page: int) -> Buffer:
        return self._pages[page].buffer

    def acquire(
        self,
        items: Sequence[tuple[object, ArrayLike]],
        progress: Progress | None = None,
        writers: int = WRITERS,
    ) -> tuple[int, ...]:
        """Make arrays resident and return the pages that hold them, to be released with `release`.

        Parameters
        ----------
        writers
            Number of threads that may write to host-visible memory.
        """
        with self._lock:
            missing = {key: array for key, array in items if key not in self._spans}
            added: list[int] = []
            try:
                for group in self._pack(list(missing.items())):
                    added.append(self._upload(group, progress, writers))
            except BaseException:
                for page in added:
                    self._free_page(page)
                raise
            pages = tuple(sorted({self._spans[key].page for key, _ in items}))
            for page in pages:
                self._pages[page].users += 1
            return pages

    def release(self, pages: Sequence[int]) -> None:
        """Release pages that `acquire` returned; a page without users is freed."""
        with self._lock:
            for page in pages:
                self._pages[page].users -= 1
                if self._pages[page].users == 0:
                    self._free_page(page)

    def _free_page(self, page: int) -> None:
        self._pages.pop(page).buffer.close()
        self._spans = {key: span for key, span in self._spans.items() if span.page != page}

    def _pack(
        self, items: Sequence[tuple[object, ArrayLike]]
    ) -> list[list[tuple[object, ArrayLike]]]:
        groups: list[list[tuple[object, ArrayLike]]] = []
        used = self._page_words + 1
        for key, array in items:
            words = aligned(_words(array))
            if used + words > self._page_words:
                groups.append([])
                used = 0
            groups[-1].append((key, array))
            used += words
        return groups

    def _upload(
        self, items: Sequence[tuple[object, ArrayLike]], progress: Progress | None, writers: int
    ) -> int:
        total = sum(aligned(_words(array)) for _, array in items)
        page = self._next_page
        self._next_page += 1
        buffer = self._context.storage(max(total, ALIGN_WORDS))
        try:
            write_new(self._context, buffer, [a for _, a in items], progress, writers)
        except BaseException:
            buffer.close()
            raise
        self._pages[page] = _Page(buffer, 0)
        offset = 0
        for key, array in items:
            self._spans[key] = Span(page, offset, _words(array))
            offset += aligned(_words(array))
        return page
