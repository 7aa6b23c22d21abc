"""Run pool: the threads that execute the submitted runs of a graph.

    submit --accepted--> one thread for each of the plan's runs in flight --> its future

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
    """The threads for the runs of one graph; the caller holds a lock. stream: the graph's runs by
    simulated time, if its devices are simulated.
    """

    def __init__(self, stream: SimulatedStream | None) -> None:
        self.stream = stream
        self._threads = 0
        self._pools: list[ThreadPoolExecutor] = []
        """The pools: the last one accepts runs, earlier ones finish their queues."""

    def submit(self, work: Callable[[], R], threads: int) -> Future[R]:
        """Queue a function for a thread, in order of submission.

        threads: the maximum number of threads; a later plan may need more.

        Raises
        ------
        PlanError
            The interpreter is shutting down.
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
        """Accept no more runs; do not wait, because this may be one of the threads."""
        for pool in self._pools:
            pool.shutdown(wait=False)
