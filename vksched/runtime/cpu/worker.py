"""The worker: a thread that computes splits in submission order, unaffected by interrupts of
waiting threads.

    submit --> queue --> the thread: claim, compute, done      wait: until done, or timeout

Problem: Ctrl-C may interrupt a thread between any two steps while it submits work or waits for it,
and Python's own pools acquire locks and conditions there. A lock that stays acquired would block
the worker forever. Method: use a queue and locks with one C call each, such that an acquired lock
has no consequence. Examples: tests/runtime/test_worker.py.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from ...common.errors import PlanError

LOOK_S = 0.5
"""Interval at which a waiting thread checks the state, because another thread may have consumed its
wake-up.
"""
EXIT_S = 10.0
"""Maximum time that the end of the process waits for a running split."""


class Job:
    """A function to compute, which returns its seconds."""

    __slots__ = ("_claim", "_compute", "_ended", "done", "error", "seconds")

    def __init__(self, compute: Callable[[], float]) -> None:
        self._compute = compute
        self._claim, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self.done = False
        self.seconds = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Compute it unless it was cancelled. Only the worker calls this, which no interrupt
        reaches.
        """
        try:
            if self._claim.acquire(blocking=False):
                self.seconds = self._compute()
            elif self.error is None:  # the cancelling thread was interrupted
                self.error = _cancelled_error()
        except BaseException as error:
            self.error = error
        finally:
            del self._compute
            self.done = True
            self._ended.release()

    def cancel(self) -> None:
        """Cancel it if no thread has started it."""
        if self._claim.acquire(blocking=False):
            self.error = _cancelled_error()
            self.done = True

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Wait until it is done; return False after a timeout."""
        until_s = time.monotonic() + timeout_s
        while not self.done:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            if self._ended.acquire(timeout=min(left_s, LOOK_S)):
                self._ended.release()  # wake other waiting threads
        return True

    def result(self) -> float:
        """Return the seconds of a finished job; raise its error if it failed."""
        if self.error is not None:
            raise self.error
        return self.seconds


def _cancelled_error() -> PlanError:
    return PlanError("[wait] the split was cancelled before it began")


class Worker:
    """One thread. It ends with the worker's last reference or with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, thread, EXIT_S)
        self._thread = thread

    def submit(self, compute: Callable[[], float]) -> Job:
        """Submit a function; it starts after all earlier ones.

        Raises
        ------
        PlanError
            The worker has ended.
        """
        if not self._end.alive:
            raise PlanError("[submit] cpu: its worker has ended; try a new scheduler")
        job = Job(compute)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Wait for all submitted work, then end the thread."""
        self._end.detach()
        _end(self._jobs, self._thread, None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # release its references: the next job may come much later


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread, timeout_s: float | None) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout_s)
