"""ExecutorGenerations: the executors of a compiled graph, one after the other.

    plan, prepare --> executor --a device fails, returns or is slow--> shut down --> plan, prepare

Examples: tests/engine/test_faults.py, tests/engine/test_drift.py.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from ..common.dtypes import Progress
from ..common.errors import DeviceError, OutOfMemory, VkschedError
from ..common.user_warning import warn
from ..plan.plan import Plan
from ..plan.types.plan_types import PlanValue
from ..runtime.device import Closeable
from ..runtime.executors.base_executor import BaseExecutor
from ..runtime.run_stats import RunStats
from ..runtime.simulated.simulated_device import stream_on
from .faults import Faults, Quarantine
from .plan_builder import PlanBuilder
from .replan import ReplanReason, ReplanTracker
from .report.run_history import GraphHistory, PlanOptions
from .request import Request
from .run_pool import RunPool

MAX_FAILURES = 64
"""The maximum number of failures of one run, and of the preparation of one plan; each is followed
by another plan. A device is excluded after at most three failures, so more come from devices that
repeatedly return, or from hosts with wrong reports.
"""


class ExecutorGenerations:
    """The executors of a graph on the devices of one scheduler. The watchdog of `preparing` records
    each run; if devices are too slow, or another plan is faster (replan.py), the next run starts a
    generation.
    """

    def __init__(self, preparing: PlanBuilder, request: Request) -> None:
        self._preparing = preparing
        self._request = request
        self._quarantine = preparing.quarantine
        self._states = preparing.states
        self._watched: weakref.WeakSet[Plan] = weakref.WeakSet()  # plans with a finished run
        self._pool = RunPool(stream_on(preparing.opened.devices))
        self._placed: list[Plan] = []  # plans that hold references to their states
        self.history = _history(request, preparing)
        """The stats of the last finished runs."""
        self.plan: Plan
        """The current plan."""
        # This lock guards the following fields; it is held while an executor is prepared.
        self._changing = threading.RLock()
        self._executor: BaseExecutor | None = None
        self._stale = (
            ""  # the reason for a new generation at the next run: "slow", "restore_device"
        )
        self._drift = ReplanTracker(preparing.paces.of)
        self._measured = False
        """True once kernels were tuned; retried runs do not tune, because they are late already."""
        self.plan_numbers: list[int] = []  # of all plans until now, for events
        self._faults = Faults(self._quarantine, self._states, preparing.trace, self.plan_numbers)
        self._unanswered: list[Closeable] = []

    def reconsider(self) -> None:
        """Plan again at the next run, because a device has returned."""
        with self._changing:
            self._stale = "restore_device"

    def _release(self) -> None:
        """Release the states of plans that are no longer executed."""
        while self._placed:
            self._states.release(self._placed.pop())

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

    def _ready(self, progress: Progress | None = None) -> BaseExecutor:
        """Return the current executor; build a new one, after all runs in flight, if one of its
        devices is excluded.
        """
        warnings: list[str] = []
        failed: VkschedError | None = None
        try:
            with self._changing:
                last = self._executor
                again: ReplanReason | None = None
                if last is not None:
                    if not (last.is_shut_down or self._stale):
                        again = self._preparing.look(self._request, self._drift, self._faults)
                        if again is None and works(last, self._quarantine):
                            return last
                    self._unanswered += last.shutdown()
                    self._faults.record(last.take_faults(), last.devices)
                    self._executor = None
                try:
                    cause, self._stale = _cause(last, again, self._stale), ""
                    self._executor = executor = self._prepare(progress, (again, cause))
                    executor.open()
                    self.plan_numbers += executor.numbers
                    self._release()  # last, so that no state is dropped in between
                    self._placed.append(executor.plan)
                    self.plan = executor.plan
                    self.history.begin(executor.plan)
                except VkschedError as error:
                    failed = error
                    last_fault = self._faults.last
                    if last_fault is not None and error.__cause__ is None:
                        error.__cause__ = last_fault
                    raise
                finally:
                    now = self._executor
                    names = None if now is None else now.device_names
                    warnings = self._faults.report(names, failed)
        finally:
            failed = None  # avoid a reference cycle with this frame
            for text in warnings:
                warn(text)
        return executor

    def _prepare(
        self, progress: Progress | None, why: tuple[ReplanReason | None, str]
    ) -> BaseExecutor:
        preparing, request = self._preparing, self._request
        failures = 0
        while True:
            self._quarantine.require_empty()
            left_out, small = self._faults.left_out, bool(self._faults.short)
            devices = tuple(preparing.opened.devices)
            try:
                with preparing.lock:
                    preparing.require_reach(request.graph, left_out)
                    if not self._measured:
                        preparing.measure(request, left_out, small)
                        self._measured = True
                    about = progress, self._drift, *why, self._pool.stream
                    return preparing.executor(request, left_out, small, *about)
            except DeviceError as error:
                if isinstance(error, OutOfMemory) and preparing.opened.holders.shrink(error):
                    continue
                self._faults.record([error], devices)
                failures += 1
                if failures > MAX_FAILURES or not self._faults.may_retry(error):
                    self._faults.forget_memory()  # the next run retries
                    raise


def _history(request: Request, preparing: PlanBuilder) -> GraphHistory:
    copies, with_cpu = preparing.copies, preparing.opened.with_cpu
    asked = PlanOptions(request.overrides, with_cpu, copies, request.all_reduce_nodes)
    return GraphHistory(partial(_asked, request, asked))


def works(executor: BaseExecutor | None, quarantine: Quarantine) -> TypeGuard[BaseExecutor]:
    """Return True if there is an open executor whose devices all work."""
    if executor is None or executor.is_shut_down:
        return False
    reasons = quarantine.reasons
    return not reasons or reasons.keys().isdisjoint(executor.device_names)


def _cause(last: BaseExecutor | None, again: ReplanReason | None, stale: str) -> str:
    """Return the reason for a new plan, for events."""
    if last is None:
        return "compile"
    return "replan" if again is not None else stale or "fault"


def _asked(request: Request, asked: PlanOptions, plan: PlanValue) -> PlanOptions:
    """Return the options that a plan of a request was built with."""
    return replace(asked, overrides=request.version(plan.graph).overrides)
