"""SplitExecutor: the operations of a run on the splits of a static plan, one by one.

    start_split   write inputs to the upload buffer -> wait for transfers -> submit
    wait          wait for a split -> check the sequence words of ended ones -> call observers
    output        copy a result

`PlanExecutor` composes runs from them. Examples: tests/runtime/test_executor.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, RunCancelled
from ...plan.plan import Plan
from ...plan.types.plan_types import HOST, Split, Upload
from ...storage.lazy_array import as_array
from ..cpu.evaluate import Values
from ..device import PreparedPlan
from . import race_checker
from .base_executor import INTERRUPTED_S, BaseExecutor
from .executor_context import ExecutorContext
from .run_record import RunRecord


class SplitExecutor(BaseExecutor):
    """The operations of runs of a static plan."""

    def __init__(self, plan: Plan, context: ExecutorContext) -> None:
        super().__init__(plan, context, {split.device for split in plan.splits})
        self._makers = {copy.node: split.id for split in plan.splits for copy in split.downloads}
        self._splits_of: dict[int, list[int]] = {}
        for split in plan.splits:
            self._splits_of.setdefault(split.device, []).append(split.id)
        self._streamed_weights = _streamed_weights(plan)
        self._log = race_checker.Log(plan) if race_checker.wanted() else None
        self.prepare(context.progress, self._make_session)

    def _make_session(self, index: int, progress: Progress | None) -> None:
        prepared = self._prepared_plans[index] = self.devices[index].prepare(
            self.plan, index, progress
        )
        _stage_streamed(self.plan, self._splits_of[index], prepared)
        if self._log:
            self._prepared_plans[index] = self._log.watch(prepared, index)

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
        limit_s = min(self._timeout_s, max(0.0, run.deadline_s - start))
        self._ask(run, split_id).wait(run.slot, split_id, limit_s)
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

    def limit_waits(self, run: RunRecord, limit_s: float = INTERRUPTED_S) -> None:
        """End all further waits of an interrupted run within a time from now; further interrupts
        give it no more.
        """
        end = self._trace.clock.now() + min(limit_s, self._timeout_s)
        run.deadline_s = min(run.deadline_s, end)

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
