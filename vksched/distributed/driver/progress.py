"""Progress: call a function of the user with the latest progress, on a thread of its own.

    reader thread --put--> latest of each kind --> thread: progress(what, done, total)

A slow function does not block heartbeats; only the latest progress of each kind is reported.

Examples: tests/distributed/test_progress.py.
"""

from __future__ import annotations

import threading
from types import TracebackType

from ...common.dtypes import Progress

MAX_KINDS = 16
"""Maximum number of kinds that wait; workers report few kinds."""


class ProgressReporter:
    """Call `progress` until the block ends, then for the remaining updates.

    An exception of `progress` is raised when the block ends, and the function is not called again.
    The thread starts with the first update.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._new: dict[str, tuple[int, int]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._raised: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, what: str, done: int, total: int) -> None:
        """Schedule a call of the function; does not block."""
        with self._changed:
            if self._progress is None or self._ended:
                return
            if what not in self._new and len(self._new) >= MAX_KINDS:
                return
            self._new[what] = done, total
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(self._progress,), name="vksched-progress", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _work(self, progress: Progress) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new or self._ended)
                if not self._new:
                    return
                what = next(iter(self._new))
                done, total = self._new.pop(what)
            try:
                progress(what, done, total)
            except BaseException as error:
                with self._changed:
                    self._raised, self._ended = error, True
                    return

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and kind is None:
            thread.join()
        if self._raised is not None and kind is None:
            raise self._raised
