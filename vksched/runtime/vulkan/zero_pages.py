"""Zero pages: detect zeros that are in memory already, as in memory that the system has just
allocated.

Reading them is faster than writing them, and pages that are only read use no memory. Linux reports
untouched pages in /proc/self/pagemap: private memory has zeros there, without a read. Examples:
tests/runtime/test_zero_pages.py.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from ...common.dtypes import WORD_BYTES, NDArray

MAPS, PAGEMAP = "/proc/self/maps", "/proc/self/pagemap"
ENTRY_BYTES = 8
"""Size of an entry of PAGEMAP."""
PRESENT_BIT = 62
"""The bits of an entry from this one on mark a page that is in memory or swapped out."""


class Zeros:
    """Finds zeros in memory of shape (words,). Thread-safe until it is closed."""

    def __init__(self, memory: NDArray) -> None:
        self._memory = memory
        self._begin: int = memory.ctypes.data
        self._pages: int | None = None
        """The descriptor of PAGEMAP; None if it is not available."""
        with suppress(OSError, ValueError):
            if _is_private(self._begin, self._begin + memory.nbytes):
                self._pages = os.open(PAGEMAP, os.O_RDONLY)
        if self._pages is not None and not _reports_this_process(self._pages):
            self.close()

    def lie_in(self, start: int, end: int) -> bool:
        """Return True if all words from `start` to `end` are 0."""
        parts = self._touched(start, end)
        return not any(self._memory[a:b].max(initial=0) for a, b in parts)

    def _touched(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of words in pages that may have been touched."""
        if self._pages is None or start >= end:
            yield start, end
            return
        first = (self._begin + WORD_BYTES * start) // mmap.PAGESIZE
        last = (self._begin + WORD_BYTES * end - 1) // mmap.PAGESIZE
        there = _present(self._pages, first, last)
        if there is None:
            yield start, end
            return
        edges = np.flatnonzero(np.diff(there, prepend=False, append=False)).tolist()
        for begun, ended in zip(edges[::2], edges[1::2], strict=True):
            words = [
                ((first + page) * mmap.PAGESIZE - self._begin) // WORD_BYTES
                for page in (begun, ended)
            ]
            yield max(start, words[0]), min(end, words[1])

    def close(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            os.close(pages)


def _is_private(begin: int, end: int) -> bool:
    """Return True if memory is private to this process and maps no file.

    Raises
    ------
    OSError, ValueError
        The system does not report it, or not in Linux's format.
    """
    with open(MAPS, "rb") as lines:
        for line in lines:
            span, access, _, _, file, *_ = line.split(maxsplit=5)
            low, high = (int(address, 16) for address in span.split(b"-"))
            if low <= begin < high:
                if access[3:] != b"p" or file != b"0":
                    return False
                begin = high
                if begin >= end:
                    return True
    return False


def _present(pages: int, first: int, last: int) -> NDArray | None:
    """Return, for each page from the first to the last, whether it is present; None if the system
    does not report all of them.
    """
    size = ENTRY_BYTES * (last - first + 1)
    try:
        entries = os.pread(pages, size, ENTRY_BYTES * first)
    except (OSError, OverflowError):
        return None
    if len(entries) < size:
        return None
    return np.asarray(np.frombuffer(entries, np.uint64) >> np.uint64(PRESENT_BIT) != 0)


def _reports_this_process(pages: int) -> bool:
    """Return True if PAGEMAP reports pages that were just written. qemu's user mode shows this
    process its own MAPS, but the PAGEMAP of qemu, whose addresses differ.
    """
    written = np.ones(2 * mmap.PAGESIZE, np.uint8)
    first, last = ((written.ctypes.data + at) // mmap.PAGESIZE for at in (0, written.nbytes - 1))
    there = _present(pages, first, last)
    return there is not None and bool(there.all())
