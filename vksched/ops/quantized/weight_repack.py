"""Repack weights ahead of time, in a thread that runs while graphs are written and planned.

    thread   |----------------------- repack ------------------------|-- repack --|
    caller   |-- write --|-- passes --|-- plan --|-- lay out buffers --|-- repack --|-- run

Problem: the CPU needs repacked weights. Repacking takes as long as the rest of a start, and a core
is idle meanwhile. Method: all buffers exist from the beginning, so preparing a run does not need
their content. Native loops read and repack a few rows at a time, without the interpreter. A thread
that needs the words repacks rows too, until none are left. Repacking ahead is optional: if it has
not happened or fails, the consumer of the weights repacks them. Examples:
tests/ops/test_weight_repack.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...common.dtypes import NDArray
from ...common.errors import VkschedError
from ...storage.lazy_array import ArrayLike
from ..lowering import native_kernels
from .gguf_formats import Repacked

BUFFER_BYTES = 32 << 20
"""Minimum bytes of a shared allocation for several buffers: the system then uses large pages, which
are cleared in two thirds of the time.
"""
LINE = 16
"""Words of a cache line."""
BATCH_BYTES = 256 << 20
"""Bytes of the file that one call reads. After each call the thread acquires the interpreter lock
and checks if it is still needed.
"""


class WeightRepackThread:
    """Repack weights in a thread, and hold the words until `close`.

    A weight that is still referenced elsewhere retains its words after that.
    """

    def __init__(self, weights: Iterable[ArrayLike]) -> None:
        wanted = [each for each in weights if isinstance(each, Repacked) and each.place is not None]
        self._held_buffers: list[NDArray] = []
        self._changing = threading.Lock()
        self._closed = False
        self._job: Any = None
        self._thread = threading.Thread(target=self._work, args=(wanted,), name="vksched-repack")
        if wanted and native_kernels.has_repack_file():
            self._thread.start()

    def _work(self, wanted: Sequence[Repacked]) -> None:
        begun: list[Repacked] = []
        filled = False
        try:
            self._hold([buffer for some in _grouped(wanted) for buffer in _buffers(some)])
            begun += (each for each in wanted if each.begin(self._repack_remaining))
            parts = [each.part(each.buffer()) for each in begun]
            self._job = job = native_kernels.repack_job(parts)
            try:
                while self._is_wanted() and job.work(BATCH_BYTES):
                    pass
            finally:
                filled = job.end()  # the files may be closed now, because nothing reads them
            of_files = {part[0]: each for part, each in zip(parts, begun, strict=True)}
            for each in of_files.values():
                each.require()
        except (VkschedError, OSError, MemoryError):
            filled = False  # the consumer of the weights raises the error
        finally:
            self._job = None
            for each in begun:
                each.end(filled)

    def _hold(self, buffers: list[NDArray]) -> None:
        with self._changing:
            if not self._closed:
                self._held_buffers = buffers

    def _is_wanted(self) -> bool:
        """Return True unless `close` was called or the main thread has ended."""
        return not self._closed and threading.main_thread().is_alive()

    def _repack_remaining(self) -> None:
        """Repack rows until none are left."""
        job = self._job
        while job is not None and not self._closed and job.work(BATCH_BYTES):
            pass

    def close(self) -> None:
        """Stop, and release the words."""
        with self._changing:
            self._closed = True
            self._held_buffers.clear()

    def wait(self) -> None:
        """Wait until all weights are repacked."""
        if self._thread.ident is not None:
            self._thread.join()


def _grouped(wanted: Sequence[Repacked]) -> Iterator[list[Repacked]]:
    """Yield groups of weights of at least BUFFER_BYTES each, except the last."""
    some: list[Repacked] = []
    size_bytes = 0
    for each in wanted:
        if some and size_bytes >= BUFFER_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(each)
        size_bytes += each.nbytes
    yield some


def _buffers(wanted: Sequence[Repacked]) -> list[NDArray]:
    """Return the buffers of the words, with a single allocation for all that have none yet."""
    ends = list(accumulate(-(-each.size // LINE) * LINE for each in wanted))
    memory: NDArray = np.empty(ends[-1], np.uint32)
    starts = [0, *ends][: len(ends)]
    return [
        each.buffer(memory[start : start + each.size].reshape(each.shape))
        for start, each in zip(starts, wanted, strict=True)
    ]
