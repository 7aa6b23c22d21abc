"""The worker: a thread that computes splits in their order, whatever interrupts those who wait.

    submit --> queue --> the thread: claim, compute, done      wait: until done, or too late

Problem: Ctrl-C may come between any two steps of a thread that hands work over or waits for it, and
Python's own pools take locks and conditions there. One that is left held stops the worker for good.
Method: a queue and locks that are one call into C each, and whose state says nothing if one stays
held. Examples: tests/runtime/test_worker.py.
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
"""Between two looks at what another thread may have been told instead of this one."""
EXIT_S = 10.0
"""How long the end of the process waits for a split under way."""


class Job:
    """Something to compute that takes seconds, which it returns."""

    __slots__ = ("_claim", "_compute", "_ended", "done", "error", "seconds")

    def __init__(self, compute: Callable[[], float]) -> None:
        self._compute = compute
        self._claim, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self.done = False
        self.seconds = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Compute it, unless it was cancelled; for the worker alone, which nobody interrupts."""
        try:
            if self._claim.acquire(blocking=False):
                self.seconds = self._compute()
            elif self.error is None:  # who cancelled it was interrupted
                self.error = _given_up()
        except BaseException as error:
            self.error = error
        finally:
            del self._compute
            self.done = True
            self._ended.release()

    def cancel(self) -> None:
        """Has it not computed at all, if nobody has begun."""
        if self._claim.acquire(blocking=False):
            self.error = _given_up()
            self.done = True

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Wait until it is done, and returns whether it is."""
        until_s = time.monotonic() + timeout_s
        while not self.done:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            if self._ended.acquire(timeout=min(left_s, LOOK_S)):
                self._ended.release()  # others may wait, too
        return True

    def result(self) -> float:
        """Return the seconds of what is done; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.seconds


def _given_up() -> PlanError:
    return PlanError("[wait] the split was given up before it began")


class Worker:
    """One thread. It ends when nobody uses the worker any more, and with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, thread, EXIT_S)
        self._thread = thread

    def submit(self, compute: Callable[[], float]) -> Job:
        """Hand something over; it begins when all before it is done.

        Raises:
            PlanError: the worker has ended.
        """
        if not self._end.alive:
            raise PlanError("[submit] cpu: its worker has ended; try a new scheduler")
        job = Job(compute)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Wait until all that was handed over is done, and ends the thread."""
        self._end.detach()
        _end(self._jobs, self._thread, None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # and what it holds: nothing may come for long


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread, timeout_s: float | None) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout_s)
