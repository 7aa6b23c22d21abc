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

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import numpy as np

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, OutOfMemory, RunCancelled
from ...plan.plan import Plan
from ...plan.types.plan_types import HOST, Split, Upload
from ...storage.lazy_array import as_array
from ..cpu.evaluate import Values
from ..device import PreparedPlan
from ..run_stats import RunStats
from . import race_checker
from .base_executor import INTERRUPTED_S, BaseExecutor, CommitFailed, RunResult, StatesTorn
from .executor_context import ExecutorContext
from .run_record import Observers, RunRecord


class PlanExecutor(BaseExecutor):
    """Executes a static plan."""

    def __init__(self, plan: Plan, context: ExecutorContext) -> None:
        super().__init__(plan, context, {split.device for split in plan.splits})
        self._makers = {copy.node: split.id for split in plan.splits for copy in split.downloads}
        self._splits_of: dict[int, list[int]] = {}
        for split in plan.splits:
            self._splits_of.setdefault(split.device, []).append(split.id)
        self._streamed_weights = _streamed_weights(plan)
        self._log = race_checker.Log(plan) if race_checker.wanted() else None
        self._before_commits = plan.splits[: len(plan.splits) - len(plan.commits)]
        self._early_commits = plan.commits if plan.commits_early else ()
        self._late_commits = () if plan.commits_early else plan.commits
        waits = self._late_commits[0].waits if self._late_commits else plan.final_waits
        self._results_wait = waits
        self._outputs = tuple(node for _, node in plan.graph.outputs)
        self.prepare(context.progress, self._make_session)

    def _make_session(self, index: int, progress: Progress | None) -> None:
        prepared = self._prepared_plans[index] = self.devices[index].prepare(
            self.plan, index, progress
        )
        _stage_streamed(self.plan, self._splits_of[index], prepared)
        if self._log:
            self._prepared_plans[index] = self._log.watch(prepared, index)

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        run, start, results = self.new_run(slot, feeds, observers), self.now_s(), RunResult(())
        try:
            self.begin(run)
            self.submit_all(run)
            self.finish(run, results)
            self._agree(run, results)
        except BaseException as error:
            if self._is_written(run, error):
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
        interrupt is raised after states are written. goes_on: an error does not end the steps.
        """
        done = 0
        while done < len(steps):
            try:  # an interrupt may occur between any two calls
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

    def _is_written(self, run: RunRecord, error: BaseException) -> bool:
        """Return True if an early commit may have changed states when a run failed. One that found
        no memory was not submitted: early commits are brief, so each is one submission.
        """
        begun = [split.id for split in self._early_commits if split.id in run.submitted_s]
        refused = isinstance(error, OutOfMemory) and not run.handed_over.intersection(begun)
        return bool(begun) and not refused

    def _end_early(self, run: RunRecord, results: RunResult, error: BaseException) -> NoReturn:
        """End a run that failed after its early commit: an interrupt is raised once the states are
        written; after a device failure they are torn.
        """
        causes = [error]
        if isinstance(error, DeviceError):
            failure = as_failure(error)
            self._fail(run, failure)
            causes = [failure]
        elif not isinstance(error, Exception):
            steps = [partial(self.submit_all, run), partial(self.finish, run, results)]
            self._call_all(run, steps, causes, goes_on=False)
        failed = self._commit_failed(run, results, causes[0])
        if any(isinstance(cause, DeviceError) for cause in causes):
            raise StatesTorn(causes[0]) from error
        raise failed from error

    def _ask(self, run: RunRecord, split_id: int) -> PreparedPlan:
        """Return the prepared plan of a split, and record which device the run uses."""
        run.split, run.device = split_id, self.plan.splits[split_id].device
        return self._prepared_plans[run.device]

    def _start_split(self, run: RunRecord, split: Split) -> None:
        if split.id in run.handed_over:  # repeated after an interrupt
            return
        for copy in split.uploads:
            if copy.source == HOST and copy.node in run.feeds:
                array = run.feeds[copy.node]
                run.input_bytes += array.nbytes
                self._stage(run, split, copy, array)
        for split_id in split.waits:
            self._wait(run, split_id, split.id)
        for copy in split.uploads:
            if split.refills and copy.node in self._streamed_weights:
                self._stage(run, split, copy, self._streamed_weights[copy.node])
            elif copy.source != HOST:
                start = self._trace.clock.now()
                array = self._ask(run, copy.source).fetch(run.slot, copy.node)
                self._fetched(run, copy.source, copy.node, array, start, split.id)
                run.transfer_bytes += self.plan.graph.nodes[copy.node].type.device_bytes
                self._stage(run, split, copy, array)
        if self.stream is not None:
            self.stream.clock.wait_for_turn()
        start = run.submitted_s[split.id] = self._trace.clock.now()
        self._ask(run, split.id).submit(run.slot, split.id, run.sequence_number)
        run.handed_over.add(split.id)
        if self._trace.active:
            self._reporter.emit(("submit", split.id, start, self._trace.clock.now()), run)

    def _stage(self, run: RunRecord, split: Split, copy: Upload, array: NDArray) -> None:
        start = self._trace.clock.now()
        self._ask(run, split.id).upload(run.slot, copy, array)
        run.spans.append(("copy", split.id, start, self._trace.clock.now()))
        if self._trace.active:
            about = {"node": copy.node, "bytes": array.nbytes, "way": "in", "needed_by": split.id}
            self._reporter.emit(run.spans[-1], run, **about)

    def _fetched(
        self, run: RunRecord, source: int, node: int, array: NDArray, start: float, needed_by: int
    ) -> None:
        """Record that the host has read a value of a split, from `start` until now."""
        run.spans.append(("copy", source, start, self._trace.clock.now()))
        if self._trace.active:
            about = {"node": node, "bytes": array.nbytes, "way": "out", "needed_by": needed_by}
            self._reporter.emit(run.spans[-1], run, **about)

    def _wait(self, run: RunRecord, split_id: int, needed_by: int) -> None:
        """Wait for a split; every earlier one on its device is complete then, too. needed_by: the
        split that waits, or HOST.
        """
        if split_id in run.complete_s:
            return
        device = self.plan.splits[split_id].device
        start = self._trace.clock.now()
        self._ask(run, split_id).wait(run.slot, split_id, self._timeout_s)
        end = self._trace.clock.now()
        run.spans.append(("wait", split_id, start, end))
        run.waits += 1
        run.fence_waits += self.plan.topology.devices[device].kind != "cpu"
        splits, done = self._splits_of[device], run.done_on.get(device, 0)
        while done < len(splits) and splits[done] <= split_id:
            # before its results are used: did it run, and on valid data?
            self._ask(run, splits[done]).check(run.slot, splits[done], run.sequence_number)
            run.complete_s[splits[done]] = end
            done += 1
        first, run.done_on[device] = run.done_on.get(device, 0), done
        if self._trace.active:
            self._reporter.emit(("wait", split_id, start, end), run, needed_by=needed_by)
        for complete in splits[first:done]:
            if self.plan.splits[complete].observed:
                self._show(run, self.plan.splits[complete].observed)

    def _wait_if_begun(self, run: RunRecord, split_id: int) -> None:
        if split_id in run.submitted_s:
            self._wait(run, split_id, HOST)

    def _show(self, run: RunRecord, values: Iterable[int]) -> None:
        """Call the observers of available values."""
        for node_id in values:
            name = self.plan.graph.nodes[node_id].name
            for observer in run.observers.get(node_id, ()):
                value = self._output(run, node_id)
                try:
                    goes_on = observer(name, value)
                except DeviceError as error:  # not a device of this run
                    raise RunCancelled(f"[run] the observer of {name!r} failed: {error}") from error
                if goes_on is False:
                    raise RunCancelled(f"[run] an observer stopped the run at {name!r}")

    def _output(self, run: RunRecord, node_id: int) -> NDArray:
        """Return a result in new memory: downloaded, or, for a view, evaluated from its base, which
        may be an input or a weight.
        """
        start, root = self._trace.clock.now(), node_id
        if node_id in self._makers:
            array = self._ask(run, self._makers[node_id]).fetch(run.slot, node_id)
        else:
            values, root = Values(self.plan.graph), self.plan.graph.view_base(node_id)
            for fed, array in run.feeds.items():
                values[fed] = array
            if root in self._makers:
                values[root] = self._ask(run, self._makers[root]).fetch(run.slot, root)
            array = values[node_id]
        result = np.array(array, order="C", copy=True)
        run.output_bytes += result.nbytes
        if root in self._makers:
            self._fetched(run, self._makers[root], node_id, result, start, HOST)
        return result

    def _settle(self, run: RunRecord, interrupted: bool) -> None:
        """After a failed run, wait for submitted splits, so that the slot can be reused.

        Devices that have failed are not waited for: the executor is out of use then.
        """
        limit_s = min(INTERRUPTED_S, self._timeout_s) if interrupted else self._timeout_s
        left = [s for s in run.submitted_s if s not in run.complete_s]
        try:
            for split_id in left:
                if self.plan.splits[split_id].device in self._failed:
                    continue
                try:
                    self._ask(run, split_id).wait(run.slot, split_id, limit_s)
                except DeviceError as error:
                    self._fail(run, error, blame=not interrupted)
                except Exception:
                    continue
        except BaseException:  # interrupted again: the state of this slot is unknown
            with self._state:
                self._is_shut_down = True
                self._busy.update(self.plan.splits[s].device for s in left)
                self._state.notify_all()
            raise


def as_failure(error: DeviceError) -> DeviceError:
    """Return an error that excludes its device, because its states are torn."""
    if not isinstance(error, OutOfMemory):
        return error
    return DeviceError(f"[run] expected memory for a write of states, got none: {error}")


def _streamed_weights(plan: Plan) -> dict[int, NDArray]:
    """Return the weights that the host writes to upload buffers in each run."""
    data, splits = plan.graph.data, (split for split in plan.splits if split.refills)
    copies = (copy for split in splits for copy in split.uploads)
    return {copy.node: as_array(data[copy.node]) for copy in copies if copy.node in data}


def _stage_streamed(plan: Plan, splits: Sequence[int], prepared: PreparedPlan) -> None:
    """Write host weights to their own upload buffers, for all runs."""
    lasting = (plan.splits[split] for split in splits if not plan.splits[split].refills)
    for copy in (copy for split in lasting for copy in split.uploads):
        if copy.node in plan.graph.data:
            for slot in range(plan.copies):
                prepared.upload(slot, copy, as_array(plan.graph.data[copy.node]))
