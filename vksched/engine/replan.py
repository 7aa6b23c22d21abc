"""Drift: is a plan still a good one at the pace at which devices run now?

Problem: a plan is made for the speeds of its day. Then a card gets hot, or another program takes
its turn, and another plan is faster. But paces are noisy, planning takes time, and a new plan
uploads weights again. Method: what a run measured goes into the paces of its devices
(runtime/executors/speed_tracker.py). While these stay within a band around those that the plan was
made with, nothing is done. When one leaves the band, present paces become the middle of the band,
and the graph is planned again to see whether another plan is better. The new plan is carried out
only if both hold: by simulation at present paces it is better by a margin, and as many more runs as
there were until now would save more than the change costs. The better plan is the one whose
objective is smaller: of a stream the time between two results, of energy the joules of a run. The
change costs time, so a share that is saved counts as this share of the runs' time. Bytes do not
depend on paces.

    pace of gpu:0    1.0  1.1  1.0 | 1.4  1.7            2.2  2.9              2.9  ...  2.9
    band of BAND     0.67 ....... 1.5  left: look    1.1 .... 2.6  left: look  1.9 ..... 4.3
    the new plan     .                  saves 4 %: no      saves 30 %: pays        due: look
                                                           from run 40 on          taken

A better plan that does not pay yet is due for another look at the run from which on it would pay
at the paces of the last look. So it is taken then, unless paces have changed in the meantime. If
planning fails, the next look is due when twice as many runs have ended. After each change a plan
stays for more runs than the one before it had to, so a device that wavers changes it a few times.

Whether several devices keep what a plan promises is another question, see alone.py: what it finds
is taken at the next look.

A pace that wavers around one value leaves the band once. Runs must have taken as long as a look
before there is another one, so looking takes at most half of the time. Complexity: O(ops * devices)
each time that paces are looked at; a look is a plan and two simulations. Examples:
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
from .single_device import Alone, Finding

BAND = 1.5
"""By how many times a device may be slower or faster than when its plan was made."""
PATIENCE, CALM = 4, 8
"""A plan stays for so many times the runs that the one before had to; for one run again after a
plan that lasted so many times as long as it had to.
"""
MARGIN = 0.1
"""By this share a new plan has to be better."""


@dataclass(frozen=True, slots=True)
class ReplanReason:
    """Why a graph is planned again. device: the one that left the band. ratio: how many times
    longer it takes than when it was planned. before_s, after_s: a run at present paces by the old
    plan and by the new one. objective: what both are for; before, after: what that makes small.
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
    """The same, where runs took more than they were to take. device: the one that is to be faster
    alone, or proved not to be. ratio: how many times longer runs took than the next ones should.
    """

    def __str__(self) -> str:
        text = ObjectiveFormatter.of(Objective.of(self.objective), None).text
        return (
            f"planned again after run {self.runs}: {text(self.before)} as measured, about "
            f"{text(self.after)} expected from now on; {self.device} {self.how}"
        )


class Drift:
    """The drift of one graph's plan. The caller holds a lock.

    paces: what late runs showed of a device, by op, as `Paces.of` gives it.
    """

    def __init__(self, paces: Callable[[str], Mapping[str, float]]) -> None:
        self.runs = 0
        self._paces = paces
        self._plan: PlanValue | None = None
        self._shares: Mapping[str, float] = {}
        self._middle: dict[str, PerfModel] = {}
        """By device, the costs around whose paces the band lies."""
        self.left: tuple[str, float] | None = None
        """Where the plan deserves a look, the device that is farthest from its pace when the plan
        was made, with how many times longer it takes now.
        """
        self._due = math.inf
        """The number of runs at which a plan that did not pay yet is looked at again."""
        self._costs_s = 0.0
        self._since_s = 0.0
        """Seconds of runs since the last look."""
        self._next_s = -math.inf
        self.alone = Alone()
        """Whether one device alone is faster than several, as measured."""
        self._found: Finding | None = None
        self._began, self._rest = 0, 1
        """The runs before the present plan, and how many it stays for: more after each change."""

    def begin(self, plan: PlanValue, costs_s: float) -> None:
        """A plan is ready to run. costs_s: what planning, uploading and recording took."""
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
        """Take in a run that ended; `left` then says whether the plan deserves a look."""
        self.runs += 1
        self.alone.see(stats)
        self._since_s += stats.seconds
        if self._plan is None or now_s < self._next_s or self._since_s < self._costs_s:
            return
        if self.runs < self._began + self._rest:
            return  # a device that wavers changes the plan a few times only
        if self.runs > self._began + LAST:  # its first runs tell the most
            self._next_s = now_s + EVERY_S
        self._shares = self._shares or _shares(self._plan)
        _, away = self._farthest(self._middle)
        if abs(away) > math.log(BAND) or self.runs >= self._due:
            name, away = self._farthest(_costs(self._plan.topology))
            self.left = name, math.exp(away)
        self._found = self.alone.find(self.runs, self._costs_s, self._slower)
        if self._found is not None:
            self.left = self._found.device, self._found.before_s / self._found.after_s

    def look(self, topology: Topology, planned: Callable[[Topology], Plan]) -> ReplanReason | None:
        """Return why the graph is to be planned again; None where its plan stays.

        topology: as it is now, without what this graph's plan holds. planned: makes a plan.
        """
        old, left = self._plan, self.left
        self.left, self._since_s = None, 0.0
        if old is None or left is None:
            return None
        if self._found is not None:
            return self._follow(self._found, old)
        if left[1] > BAND:
            self.alone.forget()
        self._center(topology)
        self._due = 2 * self.runs
        objective = objective_of(old)
        before = _measure(_on(topology, old), objective)
        new = planned(_with_slots(topology, old))
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

    def _follow(self, found: Finding, old: PlanValue) -> ReplanReason:
        """Return why other devices get the next runs."""
        self._found, ratio = None, found.before_s / found.after_s
        self.alone.follow(found)
        how = "has all of the work" if found.only else "is not faster alone"
        about = self.runs, objective_of(old).name, found.before_s, found.after_s, how
        return MeasuredReplanReason(found.device, ratio, found.before_s, found.after_s, *about)

    def _center(self, topology: Topology) -> None:
        self._middle = _costs(topology)

    def _farthest(self, middle: Mapping[str, PerfModel]) -> tuple[str, float]:
        """Return the device that is farthest from given costs, and how far, as a logarithm."""
        away = {name: self._away(name, costs) for name, costs in middle.items()}
        name = max(away, key=lambda device: abs(away[device]), default="")
        return name, away.get(name, 0.0)

    def _slower(self, device: str) -> float:
        """Return how many times longer a device takes than when its plan was made."""
        costs = {} if self._plan is None else _costs(self._plan.topology)
        return math.exp(self._away(device, costs[device])) if device in costs else 1.0

    def _away(self, device: str, middle: PerfModel) -> float:
        """Return how far a device is from given costs, as a logarithm: the mean over the ops of
        the plan, by the time that these take.
        """
        now = PerfModel().at_pace(self._paces(device))
        return sum(
            share * math.log((now.pace(op) or 1.0) / (middle.pace(op) or 1.0))
            for op, share in self._shares.items()
        )


def _costs(topology: Topology) -> dict[str, PerfModel]:
    """Return by name the costs of all devices that are in use."""
    return {spec.name: spec.costs for spec in topology.devices if not spec.disabled_reason}


def _measure(plan: PlanValue, objective: Objective) -> Metrics:
    """Returns what a plan takes; a stream is simulated only where that counts."""
    each: list[Metrics] = []
    for own in (plan, *plan.replicas):
        copies = own.copies if objective.asks("throughput") else 1
        peak_bytes = max(memory.peak_bytes for memory in own.memory)
        each.append(evaluate_metrics(program_of(own), own.topology, copies, peak_bytes))
    return join_replicas(each)


def _on(topology: Topology, plan: PlanValue) -> PlanValue:
    """Return a plan on a machine of other paces."""
    replicas = tuple(replace(own, topology=topology) for own in plan.replicas)
    return replace(plan, topology=topology, replicas=replicas)


def _shares(plan: PlanValue) -> dict[str, float]:
    """Return which share of a plan's expected time each op takes."""
    total: dict[str, float] = {}
    for of_split in (each for own in (plan, *plan.replicas) for each in op_seconds(own)):
        for op, seconds in of_split.items():
            total[op] = total.get(op, 0.0) + seconds
    whole = sum(total.values())
    return {op: seconds / whole for op, seconds in total.items()} if whole else {}


def _with_slots(topology: Topology, plan: PlanValue) -> Topology:
    """Return a machine that has the memory which the slots of a plan hold, too: it comes back
    before the next plan is made ready.
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
    """Returns what bringing a plan's weights to where they are not yet would take."""
    topology = plan.topology
    return sum(
        topology.route(topology.cpu, device).seconds(missing_bytes)
        for own in (plan, *plan.replicas)
        for device, memory in enumerate(own.memory[: topology.cpu])
        if (missing_bytes := max(0, memory.weight_bytes - memory.resident_bytes))
    )
