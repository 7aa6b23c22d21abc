"""SingleExecutor: carries out a plan that is one split of the CPU.

    inputs -> submit -> wait -> check -> outputs        no transfer, no state, no observer

A small network takes less time than the general way takes to note what it does. What is noted here
is the same, but all inputs are one copy and all outputs another. Where somebody listens to events,
the general way is taken. Examples: tests/runtime/test_cpu_executor.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...common.dtypes import NDArray
from ...common.errors import DeviceError
from ...plan.types.plan_types import HOST, PlanValue
from ..run_stats import RunStats, SplitStats
from .base_executor import Results
from .plan_executor import Executor
from .run_record import Observers, RunRecord, times_of


def is_single(plan: PlanValue) -> bool:
    """Whether a plan is one split of the CPU that makes all outputs, or what they are views of."""
    if len(plan.splits) != 1 or plan.commits or plan.graph.states or plan.graph.kept:
        return False
    split, data = plan.splits[0], plan.graph.data
    if plan.topology.devices[split.device].kind != "cpu":
        return False
    made = {copy.node for copy in split.copies_out}
    return (
        all(plan.graph.root(node) in made for _, node in plan.graph.outputs)
        and all(copy.source == HOST and copy.node not in data for copy in split.copies_in)
        and not (split.observed or split.aside or split.waits)
        and tuple(plan.final_waits) == (split.id,)
    )


class SingleExecutor(Executor):
    """Carries out a plan that `is_single`."""

    @cached_property
    def _moved_bytes(self) -> tuple[int, int]:
        """The bytes of the inputs and of the outputs."""
        nodes, given = self.plan.graph.nodes, self.plan.splits[0].copies_in
        sizes = ([copy.node for copy in given], self._outputs)
        given_bytes, made_bytes = (sum(nodes[n].type.host_bytes for n in each) for each in sizes)
        return given_bytes, made_bytes

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> Results:
        if observers or self._trace.active or self._log is not None:
            return super()._run(slot, feeds, observers)
        now, split = self._trace.clock.now, self.plan.splits[0]
        start = now()
        ticket = next(self._tickets) & 0xFFFFFFFF
        run = self._under_way[slot] = RunRecord(next(self._numbers), slot, ticket, feeds, observers)
        run.device = device = split.device
        session = self._sessions[device]
        try:
            session.begin(slot)
            for copy in split.copies_in:
                session.stage(slot, copy, feeds[copy.node])
            run.submitted_s[0] = submitted = now()
            session.submit(slot, 0, ticket)
            session.wait(slot, 0, self._timeout_s)
            complete = now()
            session.check(slot, 0, ticket)
            run.complete_s[0] = complete
            fetch = session.fetch
            outputs = tuple([fetch(slot, n).copy() for n in self._outputs])
        except BaseException as error:
            if isinstance(error, DeviceError):
                self._fail(run, error)
            self._settle(run, interrupted=not isinstance(error, Exception))
            self._reporter.tell_failed(run, device, start, error)
            raise
        taken_s, longest_s = times_of(session, run, split)
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
            *self._moved_bytes,
            (SplitStats(0, name, len(split.nodes), taken_s, longest_s, submitted, finish),),
            start,
            (
                ("copy", 0, start, submitted),
                ("wait", 0, submitted, complete),
                ("copy", 0, complete, end),
            ),
        )
        ran = self.last_run = self.plan, stats
        return Results(outputs, (), ran)
