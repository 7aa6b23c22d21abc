"""Words of weights made ahead, by a thread of its own, while graphs are written and planned.

    thread   |--- repack some MiB ---|--- repack some MiB ---| ...      needs no interpreter between
    caller   |-- write --|-- passes --|-- plan --|-- prepare: takes what is there, makes the rest

Problem: the CPU wants its weights repacked, which takes as long as all else of a start, and a core
is free meanwhile. Method: native loops read and repack several weights in one call; after small
calls the thread would wait for the interpreter, each time. Nothing depends on it: what is not made,
or fails, is made by who needs it. Examples: tests/ops/test_ahead.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from ...errors import VkschedError
from ...types import NDArray
from ..core import loops
from ..core.late import Held
from .blocks import Repacked

BATCH_BYTES = 32 << 20
"""Of words, made in one call: behind each the thread waits for the interpreter, 5 ms and more where
another thread computes.
"""
LINE = 16
"""Words of a line of a core's cache."""


class Ahead:
    """Makes the words of weights, and keeps them until it is closed: so long that somebody else has
    them.
    """

    def __init__(self, weights: Iterable[Held]) -> None:
        wanted = [each for each in weights if isinstance(each, Repacked) and each.place is not None]
        self._made: list[NDArray] = []
        self._changing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, args=(wanted,), name="vksched-ahead")
        if wanted and loops.has_repack_file():
            self._thread.start()

    def _work(self, wanted: Sequence[Repacked]) -> None:
        for batch in _batches(wanted):
            if self._closed or not threading.main_thread().is_alive():
                return  # nobody needs it: the interpreter waits for this thread to end
            made = _make([each for each in batch if each.begin()])
            with self._changing:
                if not self._closed:
                    self._made += made

    def close(self) -> None:
        """Makes and keeps no more."""
        with self._changing:
            self._closed = True
            self._made.clear()

    def wait(self) -> None:
        """Waits until all is made."""
        if self._thread.ident is not None:
            self._thread.join()


def _batches(wanted: Sequence[Repacked]) -> Iterator[list[Repacked]]:
    """Yields weights of one file each time, of some MiB."""
    batch: list[Repacked] = []
    for each in wanted:
        if batch and (
            each.place[0] != batch[0].place[0]  # type: ignore[index]
            or sum(one.nbytes for one in batch) >= BATCH_BYTES
        ):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def _rooms(wanted: Sequence[Repacked]) -> list[NDArray]:
    """Returns room for words, in one piece of memory: the system gives large pages of it, which are
    cleared in two thirds of the time.
    """
    ends = list(accumulate(-(-each.size // LINE) * LINE for each in wanted))
    memory: NDArray = np.empty(ends[-1] if ends else 0, np.uint32)
    starts = [0, *ends][: len(ends)]
    return [
        memory[start : start + each.size].reshape(each.shape)
        for start, each in zip(starts, wanted, strict=True)
    ]


def _make(begun: Sequence[Repacked]) -> list[NDArray]:
    """Returns the words of weights that were begun, and ends them: as far as they can be made."""
    made: list[NDArray] = []
    try:
        arrays = _rooms(begun)
        parts = [each.part(array) for each, array in zip(begun, arrays, strict=True)]
        done = loops.repack_file(parts)
        if begun:
            begun[0].require()
        made = arrays[:done]
    except (VkschedError, OSError, MemoryError):
        pass  # who needs it says so
    finally:
        for position, each in enumerate(begun):
            each.end(made[position] if position < len(made) else None)
    return made
