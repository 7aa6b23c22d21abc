"""Executor choice: selects the executor of a plan.

    dynamic scheduling ------> DynamicExecutor        one split on the CPU --> SingleExecutor
    over several hosts ------> ClusterExecutor        with replicas ---------> Replicas
                                                      all others ------------> Executor

Examples: tests/scheduler/test_scheduler.py, tests/scheduler/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..common.dtypes import Progress
from ..plan.dynamic.options import DynamicPlan
from ..plan.plan import Plan
from ..runtime.executors.base_executor import BaseExecutor, close_all
from ..runtime.executors.cpu_executor import SingleExecutor, is_single
from ..runtime.executors.dynamic_executor import DynamicExecutor
from ..runtime.executors.plan_executor import Executor
from ..runtime.executors.replica_executor import Replicas
from ..runtime.simulated_clock import SimulatedStream
from ..topology.host_names import DRIVER, host_of
from ..trace import Trace
from .device_set import DeviceSet


@dataclass(frozen=True, slots=True)
class Making:
    """The arguments of executors. numbers: the counter of run numbers. stream: the graph's runs by
    simulated time, if its devices are simulated.
    """

    opened: DeviceSet
    trace: Trace
    timeout_s: float
    numbers: Iterator[int]
    stream: SimulatedStream | None = None

    def carrier(
        self, plan: Plan, numbers: Sequence[int], progress: Progress | None = None
    ) -> BaseExecutor:
        """Return the prepared executor of a plan, with its replicas. numbers: the numbers of these
        plans, for events.
        """
        each: list[BaseExecutor] = []
        try:
            for own, number in zip((plan, *plan.replicas), numbers, strict=True):
                each.append(self._one(own, number, progress))
        except BaseException:
            close_all(each)
            raise
        if len(each) == 1:
            return each[0]
        executor = Replicas(plan, each, self.trace, self.timeout_s)
        executor.stream = self.stream
        return executor

    def _one(self, plan: Plan, number: int, progress: Progress | None) -> BaseExecutor:
        devices, hosts = self.opened.devices, self.opened.hosts
        about = self.trace, self.timeout_s, progress, self.numbers, number
        executor: BaseExecutor
        if isinstance(plan, DynamicPlan):
            executor = DynamicExecutor(plan, devices, *about)
        elif hosts is None or all(
            host_of(plan.topology.devices[split.device].name) == DRIVER for split in plan.splits
        ):
            executor = (SingleExecutor if is_single(plan) else Executor)(plan, devices, *about)
        else:
            # imported only with a cluster
            from ..distributed.driver.cluster_executor import ClusterExecutor

            return ClusterExecutor(plan, hosts.hosts, devices, hosts.transport, *about)
        executor.stream = self.stream
        return executor
