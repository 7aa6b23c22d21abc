"""CpuExecutor: executes a plan of a single CPU split.

    inputs -> submit -> wait -> check -> outputs        no transfer, no state, no observer

A small network takes less time than the bookkeeping of the general executor. The statistics here
are equal, but all inputs count as one copy and all outputs as another. If there are trace sinks,
the general executor runs the plan. Examples: tests/runtime/test_cpu_executor.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...common.dtypes import NDArray
from ...common.errors import DeviceError
from ...plan.types.plan_types import HOST, PlanValue
from ..run_stats import RunStats, SplitStats
from .base_executor import RunResult
from .plan_executor import PlanExecutor
from .run_record import Observers, RunRecord, times_of


def is_single(plan: PlanValue) -> bool:
    """Return True if a plan is a single CPU split that computes all outputs or their view bases."""
    if len(plan.splits) != 1 or plan.commits or plan.graph.states or plan.graph.backed_up_states:
        return False
    split, data = plan.splits[0], plan.graph.data
    if plan.topology.devices[split.device].kind != "cpu":
        return False
    downloaded = {copy.node for copy in split.downloads}
    return (
        all(plan.graph.view_base(node) in downloaded for _, node in plan.graph.outputs)
        and all(copy.source == HOST and copy.node not in data for copy in split.uploads)
        and not (split.observed or split.async_transfers or split.waits)
        and tuple(plan.final_waits) == (split.id,)
    )


class CpuExecutor(PlanExecutor):
    """Executes a plan that `is_single`."""

    @cached_property
    def _transfer_bytes(self) -> tuple[int, int]:
        """The total bytes of the inputs and of the outputs."""
        nodes, uploads = self.plan.graph.nodes, self.plan.splits[0].uploads
        sizes = ([copy.node for copy in uploads], self._outputs)
        input_bytes, output_bytes = (sum(nodes[n].type.host_bytes for n in each) for each in sizes)
        return input_bytes, output_bytes

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        if observers or self._trace.active or self._log is not None:
            return super()._run(slot, feeds, observers)
        now, split = self._trace.clock.now, self.plan.splits[0]
        start = now()
        sequence_number = next(self._sequence_numbers) & 0xFFFFFFFF
        run = self._under_way[slot] = RunRecord(
            next(self._numbers), slot, sequence_number, feeds, observers
        )
        run.device = device = split.device
        prepared = self._prepared_plans[device]
        try:
            prepared.begin(slot)
            for copy in split.uploads:
                prepared.upload(slot, copy, feeds[copy.node])
            run.submitted_s[0] = submitted = now()
            prepared.submit(slot, 0, sequence_number)
            prepared.wait(slot, 0, self._timeout_s)
            complete = now()
            prepared.check(slot, 0, sequence_number)
            run.complete_s[0] = complete
            fetch = prepared.fetch
            outputs = tuple([fetch(slot, n).copy() for n in self._outputs])
        except BaseException as error:
            if isinstance(error, DeviceError):
                self._fail(run, error)
            self._settle(run, interrupted=not isinstance(error, Exception))
            self._reporter.tell_failed(run, device, start, error)
            raise
        taken_s, longest_s = times_of(prepared, run, split)
        if taken_s is None:
            taken_s = complete - submitted
        name, end = self.device_names[0], now()
        finish = min(complete, submitted + taken_s)
        stats = RunStats(
            run.number,
            end - start,
            0,
            1,
            0,
            *self._transfer_bytes,
            (SplitStats(0, name, len(split.nodes), taken_s, longest_s, submitted, finish),),
            start,
            (
                ("copy", 0, start, submitted),
                ("wait", 0, submitted, complete),
                ("copy", 0, complete, end),
            ),
        )
        plan_and_stats = self.last_run = self.plan, stats
        return RunResult(outputs, (), plan_and_stats)
