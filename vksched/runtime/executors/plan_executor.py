"""PlanExecutor: executes a static plan on devices exactly as it is.

    for each split, in plan order:  send and receive transfers between hosts
                                    -> write its inputs to the upload buffer -> wait for the
                                    transfers it needs, and for buffers that it reuses -> move
                                    transfers from download buffer to upload buffer, write weights
                                    there -> submit, without waiting
    after each wait:                check the sequence words of ended splits
    at the end:                     wait for the outputs, copy the results, write states

A plan that commits early submits the writes of states with the other splits, and waits once.

Each run has its own slot (memory and recordings) and executes this loop on its own thread, so up to
`copies` runs are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

from ...common.dtypes import NDArray
from ...common.errors import DeviceError, OutOfMemory
from ...plan.plan import Plan
from ...plan.types.plan_types import HOST
from ..run_stats import RunStats
from .base_executor import CommitFailed, RunResult, StatesTorn
from .executor_context import ExecutorContext
from .run_record import Observers, RunRecord
from .split_executor import SplitExecutor


class PlanExecutor(SplitExecutor):
    """Executes a static plan."""

    def __init__(self, plan: Plan, context: ExecutorContext) -> None:
        super().__init__(plan, context)
        self._before_commits = plan.splits[: len(plan.splits) - len(plan.commits)]
        self._early_commits = plan.commits if plan.commits_early else ()
        self._late_commits = () if plan.commits_early else plan.commits
        waits = self._late_commits[0].waits if self._late_commits else plan.final_waits
        self._results_wait = waits
        self._outputs = tuple(node for _, node in plan.graph.outputs)

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        run, start, results = self.new_run(slot, feeds, observers), self.now_s(), RunResult(())
        try:
            self.begin(run)
            self.submit_all(run)
            self.finish(run, results)
            self._agree(run, results)
        except BaseException as error:
            if self.is_written(run, error):
                self._end_early(run, results, error)
            device = run.device
            if isinstance(error, DeviceError):
                self._fail(run, error)
            self._settle(run, interrupted=not isinstance(error, Exception))
            self._reporter.tell_failed(run, device, start, error)
            raise
        if self._late_commits:
            self._commit(run, results)
        try:
            results.plan_and_stats = self.plan, self.report(run, start)
        except BaseException as error:  # the states have changed: the state table must know
            raise CommitFailed(error, results, frozenset()) from error
        return results

    def now_s(self) -> float:
        """Return the time of the scheduler's clock."""
        return self._trace.clock.now()

    def new_run(
        self, slot: int, feeds: Mapping[int, NDArray], observers: Observers | None = None
    ) -> RunRecord:
        """Return the record of a new run in a slot, which is free."""
        number, sequence_number = next(self._numbers), self._sequence_number(slot) & 0xFFFFFFFF
        run = RunRecord(number, slot, sequence_number, feeds, observers or {})
        self._under_way[slot] = run
        return run

    def begin(self, run: RunRecord) -> None:
        """Reset the slot of a run."""
        for run.device, prepared in self._prepared_plans.items():
            prepared.begin(run.slot)

    def submit_all(self, run: RunRecord) -> None:
        """Submit the splits of a run, but late commits; after an interrupt, those that are left."""
        for split in self._before_commits:
            self._cross(run, split.id)
            self._start_split(run, split)
        self._cross(run, len(self._before_commits))
        for split in self._early_commits:
            self._start_split(run, split)

    def report(self, run: RunRecord, start_s: float) -> RunStats:
        """Return the statistics of a complete run that began at a time, and emit its events."""
        stats = self._reporter.report(run, self._prepared_plans, start_s, self.now_s())
        self.last_run = self.plan, stats
        return stats

    def fail(self, run: RunRecord, error: DeviceError) -> None:
        """Take the executor out of use after a failure of a run that wrote states."""
        self._fail(run, error)
        self._reporter.tell_failed(run, run.device, self.now_s(), error)

    def _sequence_number(self, slot: int) -> int:
        """Return the sequence number of the run in a slot."""
        return next(self._sequence_numbers)

    def _cross(self, run: RunRecord, split_id: int) -> None:
        """Send and receive transfers between hosts before a split, or after the last one. Plans of
        one host have none.
        """

    def _agree(self, run: RunRecord, results: RunResult) -> None:
        """Wait until all hosts have results, before states are written."""

    def finish(self, run: RunRecord, results: RunResult) -> None:
        """Wait for the results, and read them."""
        for split_id in self._results_wait:
            self._wait(run, split_id, HOST)
        results.outputs = tuple([self._output(run, node) for node in self._outputs])
        states = self.plan.graph.backed_up_states
        results.next_states = tuple([self._output(run, node) for node in states])
        if self._log:
            self._log.end(run.slot)

    def _commit(self, run: RunRecord, results: RunResult) -> None:
        """Write the next values of states, on each device that can."""
        steps: list[Callable[[], None]] = [
            *(partial(self._start_split, run, split) for split in self.plan.commits),
            *(partial(self._wait_if_begun, run, split_id) for split_id in self.plan.final_waits),
        ]
        if self._log:
            steps.append(partial(self._log.end, run.slot))
        causes: list[BaseException] = []
        self._call_all(run, steps, causes, goes_on=True)
        if causes:
            raise self._commit_failed(run, results, causes[0]) from causes[0]

    def _call_all(
        self,
        run: RunRecord,
        steps: Sequence[Callable[[], None]],
        causes: list[BaseException],
        goes_on: bool,
    ) -> None:
        """Call all steps and collect their errors; an interrupted step is called again, because an
        interrupt is raised after states are written. All repeats have one timeout. goes_on: an
        error does not end the steps.
        """
        done = 0
        while done < len(steps):
            try:  # an interrupt may occur between any two calls
                if causes:
                    self.limit_waits(run, self._timeout_s)
                while done < len(steps):
                    steps[done]()
                    done += 1
            except BaseException as error:
                if isinstance(error, DeviceError):
                    failure = error if goes_on else as_failure(error)
                    self._fail(run, failure)
                    causes.append(failure)
                else:
                    causes.append(error)
                if isinstance(error, Exception):
                    done = done + 1 if goes_on else len(steps)

    def _commit_failed(
        self, run: RunRecord, results: RunResult, cause: BaseException
    ) -> CommitFailed:
        """Wait for the work of a run whose commit failed, and return the error to raise."""
        self._settle(run, interrupted=not isinstance(cause, Exception))
        self._reporter.tell_failed(run, run.device, self._trace.clock.now(), cause)
        torn = {s.device for s in self.plan.commits if s.id not in run.complete_s}
        return CommitFailed(cause, results, frozenset(torn))

    def is_written(self, run: RunRecord, error: BaseException) -> bool:
        """Return True if an early commit may have changed states when a run failed. One that found
        no memory was not submitted: early commits are brief, so each is one submission.
        """
        begun = [split.id for split in self._early_commits if split.id in run.submitted_s]
        refused = isinstance(error, OutOfMemory) and not run.handed_over.intersection(begun)
        return bool(begun) and not refused

    def _end_early(self, run: RunRecord, results: RunResult, error: BaseException) -> NoReturn:
        """End a run that failed after its early commit: an interrupt is raised once the states are
        written; after a device failure they are torn, also if the device does not end it soon.
        """
        causes = [error]
        if isinstance(error, DeviceError):
            failure = as_failure(error)
            self._fail(run, failure)
            causes = [failure]
        elif not isinstance(error, Exception):
            steps = [
                *(partial(self.limit_waits, run), partial(self.submit_all, run)),
                partial(self.finish, run, results),
            ]
            self._call_all(run, steps, causes, goes_on=False)
        failed = self._commit_failed(run, results, causes[0])
        if any(isinstance(cause, DeviceError) for cause in causes):
            raise StatesTorn(causes[0]) from error
        raise failed from error


def as_failure(error: DeviceError) -> DeviceError:
    """Return an error that excludes its device, because its states are torn."""
    if not isinstance(error, OutOfMemory):
        return error
    return DeviceError(f"[run] expected memory for a write of states, got none: {error}")
