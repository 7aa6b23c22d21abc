"""Thread pool and buffer pool of the CPU backend: pieces of a call run in parallel, and results
reuse memory.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ...common.cpu_count import usable_cores
from ...common.dtypes import NDArray
from . import helper_backoff

MIN_PIECE_BYTES = 1 << 16
"""Smaller allocations use the system allocator, which is equally fast."""


class _PieceQueue:
    """A queue of pieces that several threads process until it is empty or one fails."""

    def __init__(self, call: Callable[..., None], items: Iterable[tuple[object, ...]]) -> None:
        self.error: BaseException | None = None
        self.longest_s = 0.0
        """The longest piece: wall time on the calling thread, CPU time on helpers. A helper may
        have a slower core than the calling thread, but must not be preempted.
        """
        self._call, self._left = call, iter(items)
        self._at_work = 0
        self._changed = threading.Condition()

    def work(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Process pieces until none is left."""
        try:
            with np.errstate(all="ignore"):
                while (item := self._take()) is not None:
                    start_s = clock()
                    self._call(*item)
                    took_s = clock() - start_s
                    with self._changed:
                        self.longest_s = max(self.longest_s, took_s)
        except BaseException as error:
            self._stop(error)

    def help(self) -> None:
        """Process pieces on a helper thread, for which `end` waits."""
        with self._changed:
            self._at_work += 1
        try:
            self.work(time.thread_time)
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Wait for all helpers, whatever interrupts. The pool may not know a helper whose start was
        interrupted, but a helper that starts later finds no piece.
        """
        while True:
            try:
                self._stop()
                with self._changed:
                    self._changed.wait_for(lambda: not self._at_work)
                return
            except KeyboardInterrupt as error:
                self.error = error

    def _take(self) -> tuple[object, ...] | None:
        with self._changed:
            return next(self._left, None)

    def _stop(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._left = iter(())
            self.error = self.error or error


class Workers:
    """Helper threads of the calling thread, one per core, started on demand. A helper without a
    core, because other programs use it, takes no piece, and no thread waits for it. If a helper is
    preempted within a piece, fewer help for a while.
    """

    def __init__(
        self,
        name: str,
        count: int | None = None,
        paused: helper_backoff.HelperBackoff = helper_backoff.of_process,
    ) -> None:
        self.count = usable_cores() if count is None else count
        self.paused = paused
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def each(self, call: Callable[..., None], pieces: Iterable[tuple[object, ...]]) -> None:
        """Call a function with each piece, in any order, on several threads.

        Raises: the first error, after all threads have ended.
        """
        items = list(pieces)
        helpers = min(self.paused.helpers(self.count - 1), len(items) - 1)
        if helpers < 1:
            with np.errstate(all="ignore"):
                for item in items:
                    call(*item)
            return
        shared, is_whole = _PieceQueue(call, items), False
        try:
            with suppress(RuntimeError):  # at interpreter exit no thread can start
                for _ in range(helpers):
                    self._started().submit(shared.help)
            shared.work()
            is_whole = True
        finally:
            start_s = time.perf_counter()
            shared.end()
            waited_s = time.perf_counter() - start_s
            if is_whole and waited_s > shared.longest_s + helper_backoff.DELAY_S:
                self.paused.tell(waited_s)
        if shared.error is not None:
            raise shared.error

    def help(self, call: Callable[[], None]) -> None:
        """Run a function on all other allowed threads; it must return when the work is done."""
        with suppress(RuntimeError):  # at interpreter exit no thread can start
            for _ in range(self.paused.helpers(self.count - 1)):
                self._started().submit(call)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, self._name)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)


class Buffers:
    """A buffer pool for results. A buffer is free when no array references it: all views of a
    result reference the array that was created for the buffer.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self._closed = False

    def taker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], NDArray]:
        """Return a function that allocates an array of this type."""
        small = math.prod(shape) * dtype.itemsize < MIN_PIECE_BYTES
        return partial(np.empty if small else self.take, shape, dtype)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        """Return an array with any content that shares no memory."""
        size = math.prod(shape) * dtype.itemsize
        fitting = [m for m in self._free if size <= m.nbytes <= 2 * size]
        if fitting:
            memory = min(fitting, key=lambda m: m.nbytes)
            self._free = [m for m in self._free if m is not memory]
        else:
            memory = np.empty(size, np.uint8).data
        owner = np.frombuffer(memory, np.uint8, size)
        weakref.finalize(owner, self._release, memory).atexit = False
        return owner.view(dtype).reshape(shape)

    def _release(self, memory: memoryview) -> None:
        if not self._closed:
            self._free.append(memory)

    def close(self) -> None:
        """Drop the pool: buffers in use are freed with their last array."""
        self._closed = True
        self._free.clear()
