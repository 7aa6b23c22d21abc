"""Pools: the threads that carry out the runs that a graph has accepted.

    submit --accepted--> one of as many threads as the plan has runs under way --> its future

Examples: tests/scheduler/test_closing.py, tests/scheduler/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ..common.errors import PlanError
from ..runtime.simulated_clock import SimulatedStream

R = TypeVar("R")


class RunPool:
    """Threads for the runs of one graph. stream: its runs by simulated time, where devices are
    simulated. The caller holds a lock.
    """

    def __init__(self, stream: SimulatedStream | None) -> None:
        self.stream = stream
        self._threads = 0
        self._pools: list[ThreadPoolExecutor] = []
        """The last one takes new runs; those before it carry out what they have."""

    def submit(self, work: Callable[[], R], threads: int) -> Future[R]:
        """Has some thread call a function, in the order in which they come. threads: how many may
        be at work; a later plan may need more.

        Raises:
            PlanError: the interpreter is shutting down.
        """
        if threads > self._threads:
            self.close()
            self._threads = threads
            self._pools.append(ThreadPoolExecutor(threads, thread_name_prefix="vksched-run"))
        stream = self.stream
        try:
            if stream is None:
                return self._pools[-1].submit(work)
            return self._submit_by_time(work, stream)
        except RuntimeError as error:
            raise PlanError(f"[submit] the interpreter is shutting down: {error}") from error

    def _submit_by_time(self, work: Callable[[], R], stream: SimulatedStream) -> Future[R]:
        number = stream.accept(len(self._pools), self._threads)

        def carry_out() -> R:
            stream.take(number)
            return work()

        try:
            future = self._pools[-1].submit(carry_out)
        except BaseException:
            stream.drop(number)
            raise
        future.add_done_callback(lambda _: stream.drop(number))
        return future

    def cancel(self) -> None:
        """Cancel the runs that have not begun."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Take no more runs; waits for none, as this may be one of the threads."""
        for pool in self._pools:
            pool.shutdown(wait=False)
