"""The CPU backend's threads and memory: pieces of a call side by side, results in memory that is
used again.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from ..types import NDArray

SMALL_BYTES = 1 << 16
"""Below this, the system's memory allocator is as good."""


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Threads that help the calling one; started when first needed."""

    def __init__(self, name: str, count: int | None = None) -> None:
        self._helpers = (usable_cores() if count is None else count) - 1
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def each(self, call: Callable[..., None], pieces: Iterable[tuple[object, ...]]) -> None:
        """Calls with each piece, in any order, on several threads.

        Raises: the first error, when all threads have ended.
        """
        items = list(pieces)
        if len(items) < 2 or self._helpers < 1:
            with np.errstate(all="ignore"):
                for item in items:
                    call(*item)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._helpers, self._name)
        left, lock = iter(items), threading.Lock()

        def work() -> None:
            with np.errstate(all="ignore"):
                while True:
                    with lock:
                        item = next(left, None)
                    if item is None:
                        return
                    call(*item)

        helpers = min(self._helpers, len(items) - 1)
        futures: list[Future[None]] = []
        try:
            with suppress(RuntimeError):  # when the interpreter ends, no thread starts any more
                for _ in range(helpers):
                    futures.append(self._pool.submit(work))
            work()
        finally:
            for future in futures:
                future.exception()
        for future in futures:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)


class Buffers:
    """Memory of results, kept from run to run. It is free again when no array shows it any more,
    whoever holds that array: numpy's views all hold the one that was made for their memory.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self._closed = False

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        """Returns an array with any content that nothing else shares."""
        size = math.prod(shape) * dtype.itemsize
        if size < SMALL_BYTES:
            return np.empty(shape, dtype)
        fitting = [m for m in self._free if size <= m.nbytes <= 2 * size]
        if fitting:
            memory = min(fitting, key=lambda m: m.nbytes)
            self._free = [m for m in self._free if m is not memory]
        else:
            memory = np.empty(size, np.uint8).data
        owner = np.frombuffer(memory, np.uint8, size)
        weakref.finalize(owner, self._give_back, memory).atexit = False
        return owner.view(dtype).reshape(shape)

    def _give_back(self, memory: memoryview) -> None:
        if not self._closed:
            self._free.append(memory)

    def close(self) -> None:
        """Keeps nothing any more: what is shown somewhere is freed with the last who shows it."""
        self._closed = True
        self._free.clear()
