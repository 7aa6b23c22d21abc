"""RunRecorder: records the outcome of a graph's runs: states, statistics and failures.

    run --results--> states --no commit left----------> statistics, failures
                        '-----DeferredCommit, finished-----^      by the next user of the states

Examples: tests/engine/test_deferred_commits.py, tests/engine/test_state_faults.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..common.errors import DeviceError, VkschedError
from ..plan.dynamic.options import DynamicPlan
from ..plan.plan import Plan
from ..runtime.executors.base_executor import BaseExecutor, RunResult
from ..runtime.run_stats import RunStats
from .faults import Faults, Quarantine
from .plan_builder import PlanBuilder
from .replan import ReplanTracker
from .report.run_history import GraphHistory
from .state_table import StateTable


class RunRecorder:
    """The outcome of the runs of a compiled graph; GraphExecutionState sets the fields."""

    _preparing: PlanBuilder
    _quarantine: Quarantine
    _states: StateTable
    _watched: weakref.WeakSet[Plan]
    _changing: threading.RLock
    _executor: BaseExecutor | None
    _stale: str
    _drift: ReplanTracker
    _faults: Faults
    history: GraphHistory
    plan: Plan

    def _ready(self) -> BaseExecutor:
        """Return the current executor, or build a new one."""
        raise NotImplementedError

    def _record_states(
        self, executor: BaseExecutor, results: RunResult, failed: Mapping[int, str] | None
    ) -> list[DeviceError]:
        """Record the states that a run has written. failed: see `StateTable.finish_run`."""
        if not executor.plan.graph.states:
            return []
        plan, devices = executor.plan, executor.devices
        return self._states.finish_run(plan, devices, results.next_states, failed)

    def _finish_commit(self, executor: BaseExecutor, results: RunResult) -> None:
        """Wait for the commit of a run that has returned, and record its result."""
        assert results.commit is not None
        failure, broken, late = results.commit.wait(), list[DeviceError](), None
        if failure is not None:
            late = failure.cause
            failed = dict.fromkeys(failure.devices, str(late) or repr(late))
            broken = self._record_states(executor, results, failed)
        self._conclude(executor, results, broken, late)

    def _conclude(
        self,
        executor: BaseExecutor,
        results: RunResult,
        broken: Sequence[DeviceError],
        late: BaseException | None,
    ) -> None:
        """Record the statistics and the failures of a run that has its results.

        Parameters
        ----------
        broken
            Failures to restore states.
        late
            The error that prevented the write of states.
        """
        if broken:
            with self._changing:
                self._faults.record(broken)
        if results.plan_and_stats is not None:
            self.history.add(*results.plan_and_stats)
            if isinstance(executor.plan, DynamicPlan):  # each run creates a new plan
                self.plan = results.plan_and_stats[0]
            self._watch(executor, *results.plan_and_stats)
        if late is not None:
            with self._changing:
                self._faults.record(executor.take_faults(), executor.devices)
            if not isinstance(late, DeviceError) or not self._faults.may_retry(late):
                raise late
            with suppress(VkschedError):  # the next run raises it; this one has its results
                self._ready()

    def _watch(self, executor: BaseExecutor, plan: Plan, stats: RunStats) -> None:
        """Record the timings of a run. plan: the executed plan."""
        own = plan if executor.plan.replicas else executor.plan
        first = own not in self._watched
        self._watched.add(own)
        too_slow = self._preparing.see(plan, stats, first, executor.number)
        with self._changing:
            if executor is self._executor and self._quarantine.on_device_failure == "retry":
                self._stale = self._stale or ("slow" if too_slow else "")
                self._drift.see(self._preparing.trace.clock.now(), stats)
