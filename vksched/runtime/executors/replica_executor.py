"""Replicas: data-parallel execution, in which each run executes on one of several devices.

Problem: a stream of runs shall use all devices, and a single run shall not use the slow one.
Method: earliest finish. A run goes to the device with the smallest (pending runs + 1) * period. A
device that is four times slower gets its first run when the fast one has three, and a device that
slows down gets fewer, because its runs stay pending longer.

    period 1 s   runs 0 1 2 . 4 5 6 .       the runs of each device, in order of arrival
    period 4 s   runs       3       7

Complexity: O(devices) for each run. Examples: tests/scheduler/test_streams.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...common.dtypes import NDArray
from ...common.errors import DeviceError
from ...plan.plan import Plan
from ...plan.simulation.plan_metrics import measure_plan
from ..device import Closeable
from .base_executor import BaseExecutor, RunResult
from .executor_context import ExecutorContext
from .run_record import InFlightSplit, Observers


class ReplicaExecutor(BaseExecutor):
    """Several executors of one graph, each on devices of its own.

    Parameters
    ----------
    plan
        The plan of the first executor, with all others as its replicas.
    each
        The executors, in the order of the plan and its replicas.
    """

    def __init__(self, plan: Plan, each: Sequence[BaseExecutor], context: ExecutorContext) -> None:
        super().__init__(plan, replace(context, plan_number=each[0].number), plan.working)
        self._each = tuple(each)
        own = [measure_plan(executor.plan)[0] for executor in self._each[1:]]
        periods = [metrics.period_s for metrics in own]
        # the first one's rate is the total rate minus the rates of the others
        whole_s = plan.metrics.period_s
        self._period_s = [1 / (1 / whole_s - sum(1 / s for s in periods)), *periods]
        self._pending = [0] * len(self._each)
        """Number of pending runs of each executor."""

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(number for executor in self._each for number in executor.numbers)

    @property
    def threads(self) -> int:
        copies = [executor.plan.copies for executor in self._each]
        longest_s = max(c * s for c, s in zip(copies, self._period_s, strict=True))
        return sum(
            max(c, math.ceil(longest_s / s)) for c, s in zip(copies, self._period_s, strict=True)
        )

    @property
    def is_shut_down(self) -> bool:
        return any(executor.is_shut_down for executor in self._each)

    @property
    def under_way(self) -> int:
        return sum(executor.under_way for executor in self._each)

    def in_flight_splits(self) -> list[InFlightSplit]:
        return [work for executor in self._each for work in executor.in_flight_splits()]

    def open(self) -> None:
        if self.stream is not None:
            limits = {executor.number: executor.plan.copies for executor in self._each}
            self.stream.open(limits, self.threads)

    def run(
        self,
        feeds: Mapping[int, NDArray],
        observers: Observers | None = None,
        slot: int | None = None,
    ) -> RunResult:
        at = self._select()
        try:
            return self._each[at].run(feeds, observers, slot)
        finally:
            with self._state:
                self._pending[at] -= 1

    def _select(self) -> int:
        """Return the index of the executor for the next run."""
        with self._state:
            each = zip(self._pending, self._period_s, strict=True)
            ends_s = [(has + 1) * period_s for has, period_s in each]
            at = ends_s.index(min(ends_s))
            self._pending[at] += 1
        if self.stream is not None:
            self.stream.wait_at(self._each[at].number)
        return at

    def take_faults(self) -> list[DeviceError]:
        return [fault for executor in self._each for fault in executor.take_faults()]

    def shutdown(self) -> tuple[Closeable, ...]:
        # stop all first, so that no executor takes a run that another one rejects
        for executor in self._each:
            executor.stop_accepting()
        return tuple(left for executor in self._each for left in executor.shutdown())
