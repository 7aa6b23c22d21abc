"""Replan: replaces a plan if the devices' speeds have changed.

Problem: a plan is built for the speeds at that time. Later a device may throttle, or another
program may use it, and another plan is faster. But measured speeds are noisy, planning takes time,
and a new plan uploads weights again. Method: the timings of runs update the speed factors of
devices (runtime/executors/speed_tracker.py). While all factors stay within a band around those at
planning time, nothing happens. When one leaves the band, the current factors become the center of
the band, and the graph is planned again. The new plan is used only if both conditions hold:
simulated with the current factors it is better by a margin, and its savings over as many further
runs as there were until now exceed the cost of the change. The better plan is the one with the
smaller objective: for a stream the time between two results, for energy the joules of a run. The
cost of the change is time, so a saved share counts as that share of the runs' time. Bytes do not
depend on speed.

    gpu:0 slowdown   1.0  1.1  1.0 | 1.4  1.7            2.2  2.9              2.9  ...  2.9
    band of BAND     0.67 ....... 1.5  left: look    1.1 .... 2.6  left: look  1.9 ..... 4.3
    the new plan     .                  saves 4 %: no      saves 30 %: pays        due: look
                                                           from run 40 on          used

A better plan that does not pay yet is scheduled for another look at the run from which it would pay
at the current speeds, and is then used unless the speeds have changed. If planning fails, the next
look is due after twice as many runs. After each change the minimum number of runs of a plan grows,
so a device with an unstable speed causes few changes. Single-device trials (single_device.py) check
separately whether several devices are faster than one; their findings are applied at the next look.

A speed that fluctuates around one value leaves the band once. Between two looks the runs must take
as long as a look, so that looks take at most half of the time. Complexity: O(ops * devices) for
each check of the speeds; a look costs one plan and two simulations. Examples:
tests/engine/test_drift.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..plan.costs.node_cost import op_seconds
from ..plan.plan import Plan
from ..plan.simulation.plan_metrics import evaluate_metrics, join_replicas
from ..plan.simulation.simulate_plan import program_of
from ..plan.types.objective_format import ObjectiveFormatter, objective_of
from ..plan.types.plan_types import PlanValue
from ..runtime.executors.speed_tracker import EVERY_S, LAST
from ..runtime.run_stats import RunStats
from ..schedule import Metrics, Objective
from ..topology.perf_model import PerfModel
from ..topology.topology import Topology
from .single_device import Finding, SingleDeviceTrials

BAND = 1.5
"""The half-width of the band: the maximum ratio to the speed at planning time."""
PATIENCE, CALM = 4, 8
"""The growth of the minimum number of runs of a plan after a change; it is reset after a plan that
lasted this multiple of its minimum.
"""
MARGIN = 0.1
"""The minimum improvement of a new plan."""


@dataclass(frozen=True, slots=True)
class ReplanReason:
    """The reason for a new plan. device: the device that left the band. ratio: its slowdown since
    planning time. before_s, after_s: the time of a run with the old and the new plan at current
    speeds. objective: the objective of both; before, after: its values.
    """

    device: str
    ratio: float
    before_s: float
    after_s: float
    runs: int
    objective: str
    before: float
    after: float
    how: str = ""

    def __str__(self) -> str:
        formatter = ObjectiveFormatter.of(Objective.of(self.objective), None)
        phrases = formatter.phrases
        return (
            f"planned again after run {self.runs}: {self.device} takes {self.ratio:.2g} times as "
            f"long as before; {phrases.what} {phrases.does} about {formatter.text(self.after)}, "
            f"with the plan before it {formatter.text(self.before)}"
        )


@dataclass(frozen=True, slots=True)
class MeasuredReplanReason(ReplanReason):
    """The reason for a new plan after runs took longer than predicted. device: the device that
    should be faster alone, or proved not to be. ratio: the time of the old runs relative to that of
    the next ones.
    """

    def __str__(self) -> str:
        text = ObjectiveFormatter.of(Objective.of(self.objective), None).text
        return (
            f"planned again after run {self.runs}: {text(self.before)} as measured, about "
            f"{text(self.after)} expected from now on; {self.device} {self.how}"
        )


class ReplanTracker:
    """Tracks the speeds of one graph's plan; the caller holds a lock.

    paces: returns the recent slowdown of a device by op, as `Paces.of` does.
    """

    def __init__(self, paces: Callable[[str], Mapping[str, float]]) -> None:
        self.runs = 0
        self._paces = paces
        self._plan: PlanValue | None = None
        self._shares: Mapping[str, float] = {}
        self._middle: dict[str, PerfModel] = {}
        """The costs at the center of the band, by device."""
        self.left: tuple[str, float] | None = None
        """If a look is due: the device farthest from its speed at planning time, and its
        slowdown.
        """
        self._due = math.inf
        """The run number at which a plan that did not pay yet is looked at again."""
        self._costs_s = 0.0
        self._since_s = 0.0
        """The time of runs since the last look, in seconds."""
        self._next_s = -math.inf
        self.alone = SingleDeviceTrials()
        """The trials of single devices."""
        self._found: Finding | None = None
        self._began, self._rest = 0, 1
        """The number of runs before the current plan, and the minimum number of its runs, which
        grows with each change.
        """

    def begin(self, plan: PlanValue, costs_s: float) -> None:
        """Start a plan. costs_s: the seconds of planning, uploading and recording."""
        self._plan, self._shares, self.left, self._due = plan, {}, None, math.inf
        self._costs_s = costs_s
        lasted = self.runs - self._began
        if lasted > CALM * self._rest:
            self._rest = 1
        elif self.runs:
            self._rest *= PATIENCE
        self._began = self.runs
        self.alone.begin(plan)
        self._center(plan.topology)

    def see(self, now_s: float, stats: RunStats) -> None:
        """Record a run; afterwards `left` is set if a look is due."""
        self.runs += 1
        self.alone.see(stats)
        self._since_s += stats.seconds
        if self._plan is None or now_s < self._next_s or self._since_s < self._costs_s:
            return
        if self.runs < self._began + self._rest:
            return  # bounds the changes by a device with an unstable speed
        if self.runs > self._began + LAST:  # the first runs are the most informative
            self._next_s = now_s + EVERY_S
        self._shares = self._shares or _shares(self._plan)
        _, away = self._largest_deviation(self._middle)
        if abs(away) > math.log(BAND) or self.runs >= self._due:
            name, away = self._largest_deviation(_costs(self._plan.topology))
            self.left = name, math.exp(away)
        self._found = self.alone.find(self.runs, self._costs_s, self._slowdown)
        if self._found is not None:
            self.left = self._found.device, self._found.before_s / self._found.after_s

    def look(self, topology: Topology, planned: Callable[[Topology], Plan]) -> ReplanReason | None:
        """Return the reason for another plan; None to keep the current one.

        topology: the current one, without the memory of this graph's plan. planned: builds a plan.
        """
        old, left = self._plan, self.left
        self.left, self._since_s = None, 0.0
        if old is None or left is None:
            return None
        if self._found is not None:
            return self._trial_reason(self._found, old)
        if left[1] > BAND:
            self.alone.forget()
        self._center(topology)
        self._due = 2 * self.runs
        objective = objective_of(old)
        before = _measure(_with_speeds(topology, old), objective)
        new = planned(_with_slots_freed(topology, old))
        after, formatter = _measure(new, objective), ObjectiveFormatter.of(objective, before)
        factor = formatter.factor(after)
        if factor is None or factor > 1 - MARGIN:
            self._due = math.inf
            return None
        run_s = before.period_s if objective.word == "throughput" else before.latency_s
        saved_s, costs_s = (1 - factor) * run_s, max(self._costs_s, _upload_seconds(new))
        if saved_s * self.runs < costs_s:
            self._due = costs_s / saved_s if saved_s else math.inf
            return None
        values = formatter.value(before), formatter.value(after)
        return ReplanReason(
            *left, before.latency_s, after.latency_s, self.runs, objective.name, *values
        )

    def _trial_reason(self, found: Finding, old: PlanValue) -> ReplanReason:
        """Return the reason for the change that a trial found."""
        self._found, ratio = None, found.before_s / found.after_s
        self.alone.follow(found)
        how = "has all of the work" if found.only else "is not faster alone"
        about = self.runs, objective_of(old).name, found.before_s, found.after_s, how
        return MeasuredReplanReason(found.device, ratio, found.before_s, found.after_s, *about)

    def _center(self, topology: Topology) -> None:
        self._middle = _costs(topology)

    def _largest_deviation(self, middle: Mapping[str, PerfModel]) -> tuple[str, float]:
        """Return the device with the largest deviation from the given costs, and its logarithm."""
        away = {name: self._deviation(name, costs) for name, costs in middle.items()}
        name = max(away, key=lambda device: abs(away[device]), default="")
        return name, away.get(name, 0.0)

    def _slowdown(self, device: str) -> float:
        """Return the slowdown of a device since planning time."""
        costs = {} if self._plan is None else _costs(self._plan.topology)
        return math.exp(self._deviation(device, costs[device])) if device in costs else 1.0

    def _deviation(self, device: str, middle: PerfModel) -> float:
        """Return the deviation of a device from the given costs: the mean logarithm over the plan's
        ops, weighted by their time.
        """
        now = PerfModel().at_pace(self._paces(device))
        return sum(
            share * math.log((now.pace(op) or 1.0) / (middle.pace(op) or 1.0))
            for op, share in self._shares.items()
        )


def _costs(topology: Topology) -> dict[str, PerfModel]:
    """Return the costs of all enabled devices by name."""
    return {spec.name: spec.costs for spec in topology.devices if not spec.disabled_reason}


def _measure(plan: PlanValue, objective: Objective) -> Metrics:
    """Return the metrics of a plan; a stream is simulated only if the objective needs it."""
    each: list[Metrics] = []
    for own in (plan, *plan.replicas):
        copies = own.copies if objective.asks("throughput") else 1
        peak_bytes = max(memory.peak_bytes for memory in own.memory)
        each.append(evaluate_metrics(program_of(own), own.topology, copies, peak_bytes))
    return join_replicas(each)


def _with_speeds(topology: Topology, plan: PlanValue) -> PlanValue:
    """Return a plan on a topology with other speeds."""
    replicas = tuple(replace(own, topology=topology) for own in plan.replicas)
    return replace(plan, topology=topology, replicas=replicas)


def _shares(plan: PlanValue) -> dict[str, float]:
    """Return the share of each op in the predicted time of a plan."""
    total: dict[str, float] = {}
    for of_split in (each for own in (plan, *plan.replicas) for each in op_seconds(own)):
        for op, seconds in of_split.items():
            total[op] = total.get(op, 0.0) + seconds
    whole = sum(total.values())
    return {op: seconds / whole for op, seconds in total.items()} if whole else {}


def _with_slots_freed(topology: Topology, plan: PlanValue) -> Topology:
    """Return the topology with the memory of this plan's slots counted as free; they are released
    before the next plan is prepared.
    """
    held = [0] * topology.cpu
    for own in (plan, *plan.replicas):
        for device, m in enumerate(own.memory[: topology.cpu]):
            held[device] += m.peak_bytes - m.weight_bytes - m.state_bytes
    return replace(
        topology,
        devices=tuple(
            replace(spec, memory_bytes=spec.memory_bytes + size_bytes)
            for spec, size_bytes in zip(topology.devices, (*held, 0), strict=True)
        ),
    )


def _upload_seconds(plan: PlanValue) -> float:
    """Return the seconds for uploading the plan's weights to devices that do not have them."""
    topology = plan.topology
    return sum(
        topology.route(topology.cpu, device).seconds(missing_bytes)
        for own in (plan, *plan.replicas)
        for device, memory in enumerate(own.memory[: topology.cpu])
        if (missing_bytes := max(0, memory.weight_bytes - memory.resident_bytes))
    )
