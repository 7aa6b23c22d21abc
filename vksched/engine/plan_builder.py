"""Plan builder: the single place that builds the plan of a request and the executor of a plan.

    request --topology, tuner--> plan --states placed, memory, recordings--> executor

The scheduler passes it to each compiled graph, which calls it again after a device failure.
Examples: tests/scheduler/test_scheduler.py, tests/engine/test_faults.py.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ..common.dtypes import Progress
from ..common.errors import OutOfMemory, PlanError, VkschedError
from ..common.gc_pause import resting_collector
from ..ir.graph import Graph
from ..ir.precision import SINGLE
from ..plan.dynamic.options import DynamicPlan
from ..plan.explain.cpu_fallback import find_fallbacks, join_reasons
from ..plan.plan import Plan
from ..plan.serialize.plan_codec import PlanRecord
from ..plan.serialize.plan_request import PlanRequest
from ..planner.memory.fit import AHEAD, LEAST
from ..planner.plan_cache import CachedPlan, serialize_cached_plan
from ..planner.planner import STATIC, answer
from ..runtime.device import Device
from ..runtime.executors.base_executor import BaseExecutor
from ..runtime.executors.executor_context import ExecutorContext
from ..runtime.executors.slowdown_tracker import SlowdownTracker
from ..runtime.executors.speed_tracker import SpeedTracker
from ..runtime.run_stats import RunStats
from ..runtime.simulated_clock import SimulatedStream
from ..schedule import Objective
from ..topology.device_spec import DeviceSpec
from ..topology.links import Links
from ..topology.topology import Topology
from ..trace import Event, Trace
from ..tuning.autotuner import Tuner
from ..tuning.first_use import FirstUse
from ..tuning.learned_costs import LearnedCosts
from .device_set import DeviceSet
from .executor_choice import build_executor
from .faults import ON_DEVICE_FAILURE, Faults, Quarantine
from .replan import ReplanReason, ReplanTracker
from .request import Request, plan_request
from .state_table import StateTable

ONE_COPY_NOTE = "copies: 1 on each device, because a device ran out of memory"
"""The note of a plan with fewer copies than requested."""
PLANS = itertools.count()
"""The plan numbers of this process, for events."""


def check_settings(
    copies: object, timeout_s: object, on_device_failure: object, policy: str, clustered: bool
) -> None:
    """Raise PlanError unless these are valid arguments of a scheduler."""
    if clustered and policy not in STATIC:
        raise PlanError(
            f"[Scheduler] expected a policy that plans beforehand with a cluster, got {policy!r}; "
            'try policy="auto", or no cluster'
        )
    if copies != "auto" and (not isinstance(copies, int) or copies < 1):
        raise PlanError(f'[Scheduler] expected copies of "auto" or 1 and more, got {copies!r}')
    if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise PlanError(f"[Scheduler] expected a timeout_s above 0, got {timeout_s!r}")
    if on_device_failure not in ON_DEVICE_FAILURE:
        raise PlanError(
            f"[Scheduler] expected on_device_failure of {ON_DEVICE_FAILURE}, got "
            f"{on_device_failure!r}"
        )


def check_switches(**switches: object) -> None:
    """Raise PlanError unless each is a bool, because a string like "no" would be true."""
    for name, value in switches.items():
        if value not in (True, False):
            raise PlanError(f"[Scheduler] expected {name} of True or False, got {value!r}")


@dataclass(frozen=True)
class Settings:
    """The settings of a scheduler's planning and execution; see `Scheduler`."""

    policy: str
    objective: Objective
    copies: int | str
    timeout_s: float
    offload: bool
    optimize: bool
    submit_granularity: Mapping[str, str]
    precision: str = SINGLE

    def __post_init__(self) -> None:
        if self.policy not in STATIC and set(self.submit_granularity.values()) - {"split"}:
            raise PlanError(
                '[Scheduler] expected submit_granularity of "split" with '
                f"policy={self.policy!r}, got "
                f'{dict(self.submit_granularity)!r}; try policy="auto"'
            )


class PlanBuilder:
    """Builds plans and executors on the devices of one scheduler.

    lock: held from planning with the free memory until that memory is allocated.
    """

    def __init__(
        self,
        opened: DeviceSet,
        settings: Settings,
        quarantine: Quarantine,
        states: StateTable,
        tuner: Tuner,
        first_use: FirstUse,
        watchdog: SlowdownTracker,
        trace: Trace,
    ) -> None:
        self.opened = opened
        self.membership: object = None
        self.quarantine = quarantine
        self.states = states
        self.watchdog = watchdog
        self.paces = SpeedTracker(trace.clock)
        self.lessons = LearnedCosts(self.paces, first_use.calibrator)
        self.trace = trace
        self.lock = threading.RLock()
        self._settings = settings
        self.timeout_s = settings.timeout_s
        self._tuner = tuner
        self._calibrator = first_use.calibrator
        self._first_use = first_use
        self._numbers = itertools.count()
        self.specs = {d.name: d.spec for d in opened.devices}
        """The warnings of the devices when they were opened."""
        self.seen: Callable[[Plan, RunStats], None] | None = None
        """A callback for each finished run, on its thread; it raises nothing."""

    def topology(self, left_out: Mapping[str, str] | None = None) -> Topology:
        """Return the current topology for the planner; excluded devices are not queried.

        left_out: excluded devices with the reasons; by default the quarantined ones.
        """
        with self.quarantine.lock:  # a device that returns replaces the closed one meanwhile
            out = dict(self.quarantine.reasons if left_out is None else left_out)
            devices = tuple(self.opened.devices)
        specs = tuple(
            replace(self.specs[d.name], memory_node="", disabled_reason=out[d.name])
            if d.name in out
            else self._spec(d)
            for d in devices
        )
        links = (*self._calibrator.links(self.opened.own, self.specs), *self.opened.links())
        return Topology(specs, Links(links)).verify()

    def lighten(self, request: Request, cached: CachedPlan | None = None) -> Request:
        """Return an optimized request, if the scheduler optimizes. cached: its rewritten graph, and
        its plan.
        """
        if not self._settings.optimize:
            return request
        with resting_collector(len(request.graph.nodes)):
            return request.optimized(self.topology(), cached=cached)

    def measure(self, request: Request, left_out: Mapping[str, str], small: bool) -> None:
        """Measure kernel variants of the graph, as far as the tuner wants to, and then the costs
        for a plan by cost; then do both for the version of the graph for the devices that the plan
        uses.
        """
        devices = [d for d in self.opened.own if d.name not in left_out]
        measured = self._measure(
            request, devices, lambda: self.plan(request, self.topology(left_out), small)
        )
        wants = measured or any(self._tuner.wants(device.spec) for device in devices)
        if self._by_cost and wants:
            plan = self.plan(request, self.topology(left_out), small)
            if plan.graph is not request.graph:
                working = {plan.topology.devices[device].name for device in plan.working}
                left = [d for d in devices[:-1] if d.name in working]
                version = request.version(plan.graph)
                self._measure(version, [*left, devices[-1]], lambda: plan)

    def plan(
        self, request: Request, topology: Topology, small: bool = False, only: Sequence[str] = ()
    ) -> Plan:
        """Return the plan of a request. small: with one copy, after an allocation failed. only: the
        devices that may have work; all by default.
        """
        if not self._by_cost:
            return self._plan(request, topology, small)
        topology = _only(topology, only)
        return plan_request(request, topology, lambda each: self._plan(each, topology, small, only))

    def _measure(
        self, request: Request, devices: Sequence[Device], plan: Callable[[], Plan]
    ) -> bool:
        """Return True if costs were measured."""
        self._tuner.measure_graph(request.graph, devices, plan, self.trace)
        topology = self.topology()

        def graphs(device: Device) -> list[Graph]:
            own = request
            if self._by_cost:
                own = request.for_devices(topology, {topology.index(device.name)})
            return [own.graph] if own is request else [own.graph, request.graph]

        about = self._spec, self.opened.with_cpu, plan, self.trace
        return self._first_use.measure(graphs, devices, *about)

    def _plan(
        self, request: Request, topology: Topology, small: bool, only: Sequence[str] = ()
    ) -> Plan:
        """Return the plan of one version of a request."""
        question, plan = self._question(request, small, only), None
        if request.cached_plan is not None:
            plan = request.cached_plan.answer(question, topology)
        plan = plan or answer(question, request.graph, topology)
        if request.notes:
            plan = replace(plan, notes=(*request.notes, *plan.notes))
        if not small:
            return plan
        return replace(plan, notes=(*plan.notes, ONE_COPY_NOTE))

    def serializer(self, plan: Plan, request: Request) -> Callable[[], dict[str, Any] | None]:
        """Return a function that returns the plan of a request as plain data for `CachedPlan`, or
        None if it cannot be cached.
        """
        if ONE_COPY_NOTE in plan.notes or plan.graph is not request.graph:
            return lambda: None
        return partial(serialize_cached_plan, plan, self._question(request, small=False))

    def _copies(self, small: bool) -> int | str:
        asked = self._settings.copies
        if not small:
            return asked
        return 1 if isinstance(asked, int) else LEAST

    def _question(self, request: Request, small: bool, only: Sequence[str] = ()) -> PlanRequest:
        """Return the plan request for the planner."""
        keys, cpu = request.graph.keys, self.opened.devices[-1].name
        return PlanRequest(
            self._settings.policy,
            self._settings.objective.name,
            request.overrides,
            AHEAD if request.is_ahead and not small else self._copies(small),
            {
                index: frozenset(n for n, key in keys.items() if device.holds(key))
                for index, device in enumerate(self.opened.devices)
            },
            {node: len(functions) for node, functions in request.observers.items()},
            self.opened.with_cpu and (not only or cpu in only),
            request.pipeline_order,
        )

    def executor(
        self,
        request: Request,
        left_out: Mapping[str, str],
        small: bool,
        progress: Progress | None = None,
        drift: ReplanTracker | None = None,
        again: ReplanReason | None = None,
        cause: str = "compile",
        stream: SimulatedStream | None = None,
    ) -> BaseExecutor:
        """Plan a request on the current devices, and return the prepared executor.

        left_out: excluded devices with the reasons. small: use one copy. drift: receives the plan
        and its costs. again: the reason for another plan, None for the first. cause: the reason,
        for events. stream: the graph's runs by simulated time.
        """
        start_s = self.trace.clock.now()
        if drift is not None and not left_out.keys().isdisjoint(drift.alone.only):
            drift.alone.forget()  # the device of the trial is excluded
        only = drift.alone.only if drift is not None else ()
        plan = self.plan(request, self.topology(left_out), small, only)
        self.opened.holders.require_room(plan)
        if again is not None:
            plan = replace(plan, notes=(*plan.notes, str(again)))
        every = plan, *plan.replicas
        numbers = [next(PLANS) for _ in every]
        if self.trace.active:
            question = self._question(request.version(plan.graph), small, only)
            for replica, (own, number) in enumerate(zip(every, numbers, strict=True)):
                decides = isinstance(own, DynamicPlan)
                planned = PlanRecord(own, question, cause, decides, replica)
                self._emit_plan(planned, start_s, number)
        for own in every:
            self.paces.expect(own)
            self.lessons.expect(own, self.opened.devices)
        devices, timeout_s = self.opened.devices, self.timeout_s
        context = ExecutorContext(devices, self.trace, timeout_s, progress, self._numbers)
        self.states.place(plan, devices)
        try:
            executor = build_executor(plan, numbers, context, self.opened.hosts, stream)
        except BaseException:
            self.states.release(plan)
            raise
        if drift is not None:
            drift.begin(plan, self.trace.clock.now() - start_s)
        return executor

    def _emit_plan(self, planned: PlanRecord, start_s: float, number: int) -> None:
        """Emit the events of a plan and of its CPU fallbacks. start_s: the time when planning
        began.
        """
        plan, cause = planned.plan, planned.cause
        working = dict.fromkeys(plan.topology.devices[s.device].name for s in plan.splits)
        fields = {
            "cause": cause,
            "devices": list(working),
            "splits": len(plan.splits),
            "transfer_bytes": plan.transfer_bytes,
            "about": planned,
        }
        now = self.trace.clock.now()
        self.trace.emit(Event("plan", "host", start_s, now, -1, fields, number))
        for found in find_fallbacks(plan, few=True):
            why = {"op": found.op, "nodes": found.nodes, "cause": join_reasons(found.reasons)}
            self.trace.emit(Event("fallback", "cpu", now, now, -1, why, number))

    def look(self, request: Request, drift: ReplanTracker, faults: Faults) -> ReplanReason | None:
        """Return the reason for a switch to another plan; None to keep the current one."""
        if not self._by_cost:
            drift.left = None  # otherwise each run would look again
        if not drift.left:
            return None
        try:
            with self.lock:
                again = drift.look(
                    self.topology(faults.left_out),
                    lambda topology: self.plan(
                        request, topology, bool(faults.short), drift.alone.only
                    ),
                )
        except VkschedError:  # a better plan is optional
            return None
        if again is not None:
            now, fields = self.trace.clock.now(), asdict(again)
            device = fields.pop("device")
            self.trace.emit(Event("replan", device, now, now, -1, fields, faults.plan))
        return again

    def see(self, plan: Plan, stats: RunStats, first: bool, number: int) -> bool:
        """Record the timings of a run; return True if its graph should be planned again.

        first: no run of this plan has ended before. number: the plan's number in events.
        """
        if self.paces.see(plan, stats):
            self.lessons.note(plan, self.opened.devices)
        if self.seen is not None:
            self.seen(plan, stats)
        return self.watchdog.see(plan, stats, first, number)

    def require_reach(self, graph: Graph, left_out: Mapping[str, str]) -> None:
        """Raise if a state is on a working device that has no memory for this graph."""
        for device in self.opened.devices:
            if device.name not in left_out:
                continue
            for node_id in graph.initial:
                if device.states.holds(graph.keys[node_id]):
                    error = OutOfMemory(
                        f"[compile] expected memory on {device.name}, where the state "
                        f"{graph.nodes[node_id].name!r} lives, got none: {left_out[device.name]}; "
                        "try closing other graphs"
                    )
                    error.holder = device.name
                    raise error

    @property
    def precision(self) -> str:
        """The default precision mode of graphs; see `Scheduler`."""
        return self._settings.precision

    @property
    def optimizes(self) -> bool:
        """True if passes optimize graphs; see `Scheduler`."""
        return self._settings.optimize

    @property
    def copies(self) -> int | str:
        """The maximum number of runs in flight; see `Scheduler`."""
        return self._settings.copies

    @property
    def _by_cost(self) -> bool:
        """True if plans depend on the devices' speeds; memory objectives do not."""
        competing = len(self.opened.devices) - 1 + self.opened.with_cpu
        by_pace = self._settings.policy == "auto" and self._settings.objective.word != "memory"
        return by_pace and competing > 1

    def _spec(self, device: Device) -> DeviceSpec:
        """Return the device spec for the planner, with the user's settings."""
        spec = self.watchdog.correct(device.spec)
        spec = self._tuner.tuned(spec)
        spec = self.paces.correct(self._calibrator.costed(spec))
        submit_granularity = self._settings.submit_granularity.get(device.name, "split")
        min_intensity = spec.offload_flops_per_byte if self._settings.offload else math.inf
        return replace(
            spec, submit_granularity=submit_granularity, offload_flops_per_byte=min_intensity
        )


def _only(topology: Topology, names: Sequence[str]) -> Topology:
    """Return a topology in which only some devices and the CPU are enabled; all by default."""
    if not names or any(topology.devices[topology.index(name)].disabled_reason for name in names):
        return topology
    in_use = {*names, topology.devices[topology.cpu].name}
    why = f"{', '.join(names)} proved to be faster alone"
    return replace(
        topology,
        devices=tuple(
            spec
            if spec.name in in_use or spec.disabled_reason
            else replace(spec, disabled_reason=why)
            for spec in topology.devices
        ),
    )
