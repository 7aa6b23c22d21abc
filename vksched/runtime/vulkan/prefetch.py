"""Weight prefetching: a background thread uploads weights while graphs are planned.

    thread   |--- upload, some MiB in each native call -----------------|
    caller   |-- write --|-- passes --|-- plan --|-- prepare: waits for the current upload

The first plan finds its weights on the device and shares them. Errors are ignored here: the plan
uploads missing weights and raises the error. Examples: tests/runtime/test_prefetch.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from ...common.errors import VkschedError
from ...storage.lazy_array import ArrayLike
from .context import Context
from .weight_store import WeightStore


class _Stop(Exception):
    """Stops the thread: the weights are not needed any more."""


class WeightPrefetcher:
    """Uploads weights and holds them on the device until it is closed, when a plan holds them.

    Parameters
    ----------
    weights
        The weights to upload, by their keys in graphs.
    """

    def __init__(
        self, context: Context, store: WeightStore, weights: Sequence[tuple[object, ArrayLike]]
    ) -> None:
        self._context, self._store = context, store
        self._pages: tuple[int, ...] = ()
        self.closing = False
        self._thread = threading.Thread(target=self._work, args=(weights,), name="vksched-prefetch")
        if weights:
            self._thread.start()

    def _work(self, weights: Sequence[tuple[object, ArrayLike]]) -> None:
        with (
            suppress(_Stop, VkschedError, OSError, MemoryError),
            self._context.keep_open(),
        ):
            self._check_stop()
            self._pages = self._store.acquire(weights, lambda *_: self._check_stop(), writers=1)

    def _check_stop(self) -> None:
        if self.closing or not threading.main_thread().is_alive():
            raise _Stop  # the interpreter waits for this thread at exit

    def wait(self) -> None:
        """Wait until all weights are uploaded."""
        if self._thread.ident is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop uploading, and release the weights that no plan uses."""
        self.closing = True
        self.wait()
        pages, self._pages = self._pages, ()
        self._store.release(pages)
