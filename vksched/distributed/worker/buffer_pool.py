"""Buffer pool: reuse memory of recurring values once its previous array is released.

    acquire(key) --filled by a message--> lend(key) --> an array --dropped, with all views-->
    free

New memory costs a page fault per 4 KiB, which slows large messages on a fast link.

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
    """One buffer per key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[Hashable, tuple[Callable[[], Any], memoryview]] = {}

    def acquire(self, key: Hashable, size: int) -> memoryview:
        """Return exclusive memory until it is lent."""
        with self._lock:
            lent, found = self._buffers.pop(key, (lambda: None, memoryview(b"")))
        return found if lent() is None and len(found) == size > 0 else memory(size)

    def lend(self, key: Hashable, taken: memoryview) -> NDArray:
        """Return acquired memory as an array; it becomes free when no view of the array is left."""
        flat: NDArray = np.frombuffer(taken, np.uint8)
        # all views of an array over a buffer have that array as their base
        with self._lock:
            self._buffers[key] = weakref.ref(flat), taken
        return flat

    def forget(self, about: Callable[[Any], bool]) -> None:
        """Drop buffers by key; lent memory stays valid."""
        with self._lock:
            self._buffers = {key: each for key, each in self._buffers.items() if not about(key)}
