"""Background writes: cache files that a thread writes later, so that no caller waits for them.

    add --DELAY_S, or a wait--> a daemon thread writes --> wait returns
                                       process exit: at most EXIT_S

The thread begins after a delay, when the results that the caller wants next, such as those of a
first run, are usually complete, and ends when all files are written. A wait begins the writes at
once. The files must be replaced atomically: a process that ends earlier leaves the former ones. A
forked child writes none of its parent's files.

Examples: tests/storage/test_background_writes.py.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from ..common.fork_guard import in_child

DELAY_S = 0.5
"""Time from the first file to the begin of the writes."""
EXIT_S = 5.0
"""Maximum time that the end of a process waits for its files."""


class BackgroundWrites:
    """The files that wait to be written, and their thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: dict[str, Callable[[], None]] = {}
        """By file, in order; an entry is removed after its write."""
        self._wanted = False
        """True if somebody waits."""
        self._first: str | None = None
        """The file that somebody waits for; it is written before the others."""
        self._thread: threading.Thread | None = None

    def add(self, name: str, write: Callable[[], None]) -> None:
        """Write a file later, in place of an earlier content that is not written yet.

        Parameters
        ----------
        write
            Writes it; an exception is logged.
        """
        with self._changed:
            self._pending.pop(name, None)
            self._pending[name] = write
            self._start()

    def wait(self, name: str | None = None, limit_s: float = EXIT_S) -> bool:
        """Write the pending files at once, and wait for them; return False if some are left.

        Parameters
        ----------
        name
            The file to wait for; all if it is None.
        limit_s
            Maximum time.
        """

        def done() -> bool:
            return not self._pending if name is None else name not in self._pending

        with self._changed:
            if done():
                return True
            self._start()
            self._wanted, self._first = True, name
            self._changed.notify_all()
            return self._changed.wait_for(done, limit_s)

    def _start(self) -> None:
        """Start the thread, unless there is one."""
        if self._thread is not None:
            return
        self._wanted = False
        self._thread = threading.Thread(target=self._work, name="vksched-write", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down: the cache stays as it is
            self._thread = None
            self._pending.clear()

    def _work(self) -> None:
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted, DELAY_S)
            while self._write_next():
                pass
        finally:  # also if a write ended the thread: the next file starts another one
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _write_next(self) -> bool:
        """Write one file; return False if none is pending, and end the thread."""
        with self._changed:
            if not self._pending:
                self._thread = None  # while no file can be added
                return False
            first = self._first
            name = first if first in self._pending else next(iter(self._pending))
            write = self._pending[name]
        try:
            write()
        except Exception:
            logging.getLogger("vksched").exception("[cache] %s was not written", name)
        finally:
            with self._changed:
                if self._pending.get(name) is write:
                    del self._pending[name]
                self._changed.notify_all()
        return True


WRITES = BackgroundWrites()
"""The background writes of this process."""


@in_child
def _forget() -> None:
    WRITES.__init__()  # type: ignore[misc]


atexit.register(WRITES.wait)
