"""Uploads ahead: weights go to the device on a thread of their own, while graphs are planned.

    thread   |--- upload, some MiB in each native call -----------------|
    caller   |-- write --|-- passes --|-- plan --|-- prepare: waits for what is under way

The first plan finds its weights on the device, and takes them over. Nothing depends on it: what
fails here is uploaded by the plan, which says why it cannot be. Examples:
tests/runtime/test_prefetch.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from ...common.errors import VkschedError
from ...storage.lazy_array import ArrayLike
from .context import Context
from .weight_store import WeightStore


class _Enough(Exception):
    """Nobody needs it any more."""


class WeightPrefetcher:
    """Uploads weights, and keeps them on the device until it is closed: so long that a plan has
    them. weights: by their keys in graphs.
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
            suppress(_Enough, VkschedError, OSError, MemoryError),
            self._context.kept_open(),
        ):
            self._go_on()
            self._pages = self._store.acquire(weights, lambda *_: self._go_on(), writers=1)

    def _go_on(self) -> None:
        if self.closing or not threading.main_thread().is_alive():
            raise _Enough  # the interpreter waits for this thread to end

    def wait(self) -> None:
        """Wait until all is uploaded."""
        if self._thread.ident is not None:
            self._thread.join()

    def close(self) -> None:
        """Upload no more, and leaves what there is to those who use it."""
        self.closing = True
        self.wait()
        pages, self._pages = self._pages, ()
        self._store.release(pages)
