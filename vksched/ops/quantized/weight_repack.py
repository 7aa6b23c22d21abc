"""Words of weights made ahead, by a thread of its own, while graphs are written and planned.

    thread   |----------------------- repack ------------------------|-- repack --|
    caller   |-- write --|-- passes --|-- plan --|-- lay out buffers --|-- repack --|-- run

Problem: the CPU wants its weights repacked, which takes as long as all else of a start, and a core
is free meanwhile. Method: all buffers are there from the beginning, so what is made ready needs no
content. Native loops read and repack a few rows at a time, without the interpreter: who needs words
takes rows as well, until none are left. Nothing depends on it: what is not made, or fails, is made
by who needs it. Examples: tests/ops/test_weight_repack.py.
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
"""Of words whose buffers are one piece of memory: the system gives large pages of it, which are
cleared in two thirds of the time.
"""
LINE = 16
"""Words of a line of a core's cache."""
BATCH_BYTES = 256 << 20
"""Of the file, read in one call: behind each the thread waits for the interpreter, and sees whether
anybody needs more.
"""


class WeightRepackThread:
    """Makes the words of weights, and keeps them until it is closed: so long that somebody else has
    them.
    """

    def __init__(self, weights: Iterable[ArrayLike]) -> None:
        wanted = [each for each in weights if isinstance(each, Repacked) and each.place is not None]
        self._buffers_held: list[NDArray] = []
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
            self._keep([buffer for some in _together(wanted) for buffer in _buffers(some)])
            begun += (each for each in wanted if each.begin(self._help))
            parts = [each.part(each.buffer()) for each in begun]
            self._job = job = native_kernels.repack_job(parts)
            try:
                while self._is_wanted() and job.work(BATCH_BYTES):
                    pass
            finally:
                filled = job.end()  # from now on nobody reads the files, which may be closed
            of_files = {part[0]: each for part, each in zip(parts, begun, strict=True)}
            for each in of_files.values():
                each.require()
        except (VkschedError, OSError, MemoryError):
            filled = False  # who needs it says so
        finally:
            self._job = None
            for each in begun:
                each.end(filled)

    def _keep(self, buffers: list[NDArray]) -> None:
        with self._changing:
            if not self._closed:
                self._buffers_held = buffers

    def _is_wanted(self) -> bool:
        """Whether anybody may need more: else the interpreter waits for this thread to end."""
        return not self._closed and threading.main_thread().is_alive()

    def _help(self) -> None:
        """Takes rows until none are left."""
        job = self._job
        while job is not None and not self._closed and job.work(BATCH_BYTES):
            pass

    def close(self) -> None:
        """Make and keeps no more."""
        with self._changing:
            self._closed = True
            self._buffers_held.clear()

    def wait(self) -> None:
        """Wait until all is made."""
        if self._thread.ident is not None:
            self._thread.join()


def _together(wanted: Sequence[Repacked]) -> Iterator[list[Repacked]]:
    """Yield weights of some MiB each time."""
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
    """Return the buffers of words, in one piece of memory where they have none yet."""
    ends = list(accumulate(-(-each.size // LINE) * LINE for each in wanted))
    memory: NDArray = np.empty(ends[-1], np.uint32)
    starts = [0, *ends][: len(ends)]
    return [
        each.buffer(memory[start : start + each.size].reshape(each.shape))
        for start, each in zip(starts, wanted, strict=True)
    ]
