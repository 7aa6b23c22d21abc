"""Buffer pool: memory for what comes again and again, once whoever had the last of it has let go.

    acquire(key) --filled by a message--> lend(key) --> an array --dropped, with all its views-->
    spare

Fresh memory costs a page fault for each 4 KiB, which large messages on a fast link feel.
Examples: tests/distributed/test_inbox.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ...common.dtypes import NDArray
from ..wire.array_codec import memory


class BufferPool:
    """One piece of memory for each key. May be used from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[Hashable, tuple[Callable[[], Any], memoryview]] = {}

    def acquire(self, key: Hashable, size: int) -> memoryview:
        """Return memory that nobody else has, until it is lent."""
        with self._lock:
            lent, found = self._buffers.pop(key, (lambda: None, memoryview(b"")))
        return found if lent() is None and len(found) == size > 0 else memory(size)

    def lend(self, key: Hashable, taken: memoryview) -> NDArray:
        """Return the bytes of memory that was taken; it is spare when no view of them is left."""
        flat: NDArray = np.frombuffer(taken, np.uint8)
        # all views of an array over a buffer have that array as their base
        with self._lock:
            self._buffers[key] = weakref.ref(flat), taken
        return flat

    def forget(self, about: Callable[[Any], bool]) -> None:
        """Free memory by its key; what is lent stays the borrower's."""
        with self._lock:
            self._buffers = {key: each for key, each in self._buffers.items() if not about(key)}
