"""Executor choice: selects the executor of a plan.

    dynamic scheduling ------> DynamicExecutor        one split on the CPU --> CpuExecutor
    over several hosts ------> ClusterExecutor        with replicas ---------> ReplicaExecutor
                                                      all others ------------> PlanExecutor

Examples: tests/scheduler/test_scheduler.py, tests/scheduler/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..plan.dynamic.options import DynamicPlan
from ..plan.plan import Plan
from ..runtime.executors.base_executor import BaseExecutor, close_all
from ..runtime.executors.cpu_executor import CpuExecutor, is_single
from ..runtime.executors.dynamic_executor import DynamicExecutor
from ..runtime.executors.executor_context import ExecutorContext
from ..runtime.executors.plan_executor import PlanExecutor
from ..runtime.executors.replica_executor import ReplicaExecutor
from ..runtime.simulated_clock import SimulatedStream
from ..topology.host_names import DRIVER, host_of
from .remote_hosts import Hosts


def build_executor(
    plan: Plan,
    plan_numbers: Sequence[int],
    context: ExecutorContext,
    hosts: Hosts | None,
    stream: SimulatedStream | None,
) -> BaseExecutor:
    """Return the prepared executor of a plan, with its replicas.

    plan_numbers: the numbers of the plan and its replicas. hosts: the workers, if there are any.
    stream: the graph's runs by simulated time, if its devices are simulated.
    """
    each: list[BaseExecutor] = []
    try:
        for own, number in zip((plan, *plan.replicas), plan_numbers, strict=True):
            each.append(_build_one(own, replace(context, plan_number=number), hosts, stream))
    except BaseException:
        close_all(each)
        raise
    if len(each) == 1:
        return each[0]
    executor = ReplicaExecutor(plan, each, context)
    executor.stream = stream
    return executor


def _build_one(
    plan: Plan, context: ExecutorContext, hosts: Hosts | None, stream: SimulatedStream | None
) -> BaseExecutor:
    executor: BaseExecutor
    if isinstance(plan, DynamicPlan):
        executor = DynamicExecutor(plan, context)
    elif hosts is None or all(
        host_of(plan.topology.devices[split.device].name) == DRIVER for split in plan.splits
    ):
        executor = (CpuExecutor if is_single(plan) else PlanExecutor)(plan, context)
    else:
        # imported only with a cluster
        from ..distributed.driver.cluster_executor import ClusterExecutor

        return ClusterExecutor(plan, hosts.hosts, hosts.transport, context)
    executor.stream = stream
    return executor
