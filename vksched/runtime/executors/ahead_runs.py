"""Ahead runs: each is submitted before the host has read the results of the one before.

    host     submit 0 | submit 1 | wait 0, take | submit 2 | wait 1, take | submit 3 | ...
    device            |--- 0 ----|---- 1 --------|---- 2 ----------|---- 3 ------

The queue of the device orders the runs, and states carry values from one to the next. The device
has work while the host reads results, so its idle time between two runs ends.

Two slots take turns. If the caller stops, the run that was submitted ahead is awaited, and its
results are dropped; the states that it wrote stay. Examples: tests/engine/test_ahead_runs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from ...common.dtypes import NDArray
from ...common.errors import DeviceError, OutOfMemory, RunCancelled
from ...plan.plan import Plan
from ..run_stats import RunStats
from .base_executor import RunResult, StatesTorn
from .plan_executor import PlanExecutor, as_failure
from .run_record import RunRecord

Feeds = Mapping[int, NDArray]
Take = Callable[[tuple[NDArray, ...]], bool]
SLOTS = 2


def may_run_ahead(plan: Plan) -> bool:
    """Return True if runs of a plan may be submitted ahead: no run can fail but by its device."""
    return plan.commits_early and plan.copies >= SLOTS and not plan.graph.backed_up_states


def run_ahead(
    executor: PlanExecutor, feeds: Iterator[Feeds], take: Take
) -> tuple[list[RunStats], OutOfMemory | None]:
    """Run once for each of some inputs, until `take` returns False for the outputs of a run; the
    calling thread has the states. Return the statistics of the runs. If the device had no memory
    for the last inputs that were read, and further outputs are wanted, also return its error: the
    states are those after the runs before, and the executor is out of use.

    executor: that of a plan that `may_run_ahead`.

    Raises
    ------
    ExecutorClosed
        The executor accepts no runs any more; none has begun.
    Exception
        The error of inputs that cannot be read; `take` got the outputs of all runs before.
    StatesTorn
        The device failed while runs wrote states.
    """
    with executor.all_slots():
        runs = _AheadRuns(executor)
        runs.run(feeds, take)
        return runs.stats, runs.refused


class _AheadRuns:
    """The runs of one call of `run_ahead`."""

    def __init__(self, executor: PlanExecutor) -> None:
        self._executor = executor
        self._in_flight: list[tuple[RunRecord, float]] = []
        """The submitted runs whose end was not seen, with their start times."""
        self.stats: list[RunStats] = []
        self.refused: OutOfMemory | None = None
        self._input_error: Exception | None = None

    def run(self, feeds: Iterator[Feeds], take: Take) -> None:
        try:
            goes_on = self._start_next(feeds, 0)
            for number in itertools.count(1):
                goes_on = goes_on and self._start_next(feeds, number)
                if not self._in_flight:
                    break
                if not _takes(take, self._end()):
                    self.refused = None
                    break
            while self._in_flight:
                self._end()
        except BaseException as error:
            self._give_up(error)
        if self._input_error is not None:
            raise self._input_error

    def _start_next(self, feeds: Iterator[Feeds], number: int) -> bool:
        """Start the next run; return False if there is none, no memory for it, or its inputs cannot
        be read.
        """
        try:
            following = next(feeds, None)
        except Exception as error:  # raised after the runs before it
            self._input_error = error
            return False
        if following is None:
            return False
        try:
            self._start(following, number)
        except OutOfMemory as error:
            run = self._in_flight[-1][0]
            if self._executor.is_written(run, error):
                raise
            self._forget(-1)
            self._executor.fail(run, error)
            self.refused = error
            return False
        return True

    def _start(self, feeds: Feeds, number: int) -> None:
        executor, slot = self._executor, number % SLOTS
        run, start_s = executor.new_run(slot, feeds), executor.now_s()
        if executor.race_log:
            executor.race_log.acquire(slot)
        self._in_flight.append((run, start_s))
        executor.begin(run)
        executor.submit_all(run)

    def _end(self) -> tuple[NDArray, ...]:
        """Wait for the oldest run; return its outputs."""
        executor, (run, start_s) = self._executor, self._in_flight[0]
        results = RunResult(())
        executor.finish(run, results)
        self.stats.append(executor.report(run, start_s))
        self._forget()
        return results.outputs

    def _forget(self, place: int = 0) -> None:
        """Remove a run, by default the oldest one, which has ended."""
        run, _ = self._in_flight.pop(place)
        if self._executor.race_log:
            self._executor.race_log.release(run.slot)

    def _give_up(self, error: BaseException) -> NoReturn:
        """Wait for the runs in flight, also after interrupts, and raise the error. The states are
        then those after the last one of these runs. A device that does not end them soon after an
        interrupt has failed.
        """
        failure = error if isinstance(error, DeviceError) else None
        while self._in_flight and failure is None:
            run = self._in_flight[0][0]
            try:  # an interrupt may occur between any two calls
                for each, _ in self._in_flight if not isinstance(error, Exception) else ():
                    self._executor.limit_waits(each)
                if run.submitted_s:
                    self._executor.submit_all(run)
                    self._executor.finish(run, RunResult(()))
                self._forget()
            except DeviceError as another:
                failure = another
            except Exception:
                self._forget()
            except BaseException as interrupt:
                error = error if not isinstance(error, Exception) else interrupt
        if failure is None:
            raise error
        for run, _ in self._in_flight[:1]:
            self._executor.fail(run, failure := as_failure(failure))
        raise StatesTorn(failure if isinstance(error, Exception) else error) from failure


def _takes(take: Take, outputs: tuple[NDArray, ...]) -> bool:
    try:
        return take(outputs)
    except DeviceError as error:  # not of this device
        raise RunCancelled(f"[run] the consumer of results failed: {error}") from error
