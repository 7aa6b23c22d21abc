"""Advice: simulates the removal or addition of devices.

    run     plan of graph 1   plan of graph 2          one run
    as it is          3 ms              9 ms            12 ms
    without gpu:1     3 ms              4 ms             7 ms    --> advice: over the margin
    + another gpu:0   3 ms              9 ms            12 ms

Each graph of a run is planned for each alternative machine without opening devices. The plans'
objective is compared. Seconds and joules of the graphs add up, because they run in sequence; so do
their bytes on a device, because all graphs stay allocated. Advice must exceed the planner's margin:
the wider one if a used device was never measured. Complexity: a plan for each graph and change.
Examples: tests/engine/test_advice.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ...plan.types.objective_format import ObjectiveFormatter, objective_of, percent
from ...plan.types.plan_types import PlanValue
from ...plan.types.query import buffers
from ...planner.search.select import margin_of
from ...planner.what_if import Change, Outcome, compare_plan
from ...schedule import Metrics, Objective
from ...schedule.model.objectives import LATENCY
from ...topology.device_spec import DeviceSpec
from ...topology.edit import with_device
from ...topology.links import Link
from ...topology.topology import Topology
from .run_history import GraphRun, WholeRun

AS_IT_IS = "as it is"
MAX_LINES = 3
"""The maximum number of lines of advice, the best first."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A simulated run on other devices. what: "without vulkan:1", "vulkan:0 alone", "with another
    vulkan:0". metrics: None if a graph does not fit. measured: all used devices were measured.
    watts_assumed: the watts of a used device are an assumption.
    """

    what: str
    metrics: Metrics | None
    measured: bool
    watts_assumed: bool = False

    @property
    def seconds(self) -> float | None:
        """The time of one run in seconds."""
        return self.metrics.latency_s if self.metrics is not None else None


@dataclass(frozen=True, slots=True)
class Advice:
    """The simulated alternatives of a run. objective: the objective of its plans. now: the run as
    it is. choices: the alternatives, the best first.
    """

    objective: Objective
    now: Alternative
    alternatives: tuple[Alternative, ...]

    @property
    def found(self) -> tuple[Alternative, ...]:
        """The alternatives that are better by more than the margin."""
        return tuple(c for c in self.alternatives if self.gain(c) > self._margin(c))

    def value(self, alternative: Alternative) -> float | None:
        """Return the value of the objective; None if a graph does not fit."""
        return (
            self._formatter.value(alternative.metrics) if alternative.metrics is not None else None
        )

    def gain(self, alternative: Alternative) -> float:
        """Return the relative reduction of the objective; negative if it grows."""
        factor = (
            self._formatter.factor(alternative.metrics) if alternative.metrics is not None else None
        )
        return 1 - factor if factor is not None else 0.0

    def lines(self) -> list[str]:
        """Return the advice as lines of text; one line if there is none."""
        found, formatter = self.found[:MAX_LINES], self._formatter
        phrases = formatter.phrases
        if not self.alternatives:
            return []
        if not found:
            min_gain = percent(min(map(self._margin, self.alternatives)))
            text = f"no device to remove or to add would make {phrases.result} over {min_gain}"
            return [f"{text} {phrases.smaller}, by simulation"]
        now = formatter.text(self.value(self.now) or 0.0)
        return [
            f"{each.what}: {phrases.what} would {phrases.do} "
            f"{formatter.text(self.value(each) or 0.0)} instead of {now} "
            f"({percent(self.gain(each))} less), by simulation"
            + "".join(f"; {doubt}" for doubt in self._doubts(each))
            for each in found
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the advice as plain data: all alternatives, with a mark for those over the margin.

        value: the value of the objective.
        """
        worth = {each.what for each in self.found}
        return {
            "by": "simulation",
            "objective": self.objective.name,
            "seconds": self.now.seconds,
            "value": self.value(self.now),
            "measured": self.now.measured,
            "alternatives": [
                {
                    "what": each.what,
                    "seconds": each.seconds,
                    "value": self.value(each),
                    "measured": each.measured,
                    "gain": self.gain(each),
                    "worth_it": each.what in worth,
                }
                for each in self.alternatives
            ],
        }

    @property
    def _formatter(self) -> ObjectiveFormatter:
        return ObjectiveFormatter.of(self.objective, self.now.metrics)

    def _doubts(self, alternative: Alternative) -> list[str]:
        """Return the assumptions of a value that were not measured; bytes are exact."""
        guessed = self.objective.word != "memory" and not self._known(alternative)
        assumed = self.objective.asks("energy") and alternative.watts_assumed
        caveats = {"devices are estimated, not measured": guessed, "watts are assumed": assumed}
        return [text for text, holds in caveats.items() if holds]

    def _known(self, alternative: Alternative) -> bool:
        return self.now.measured and alternative.measured

    def _margin(self, alternative: Alternative) -> float:
        assumed = self.now.watts_assumed or alternative.watts_assumed
        return margin_of(self.objective, self._known(alternative), assumed)


@dataclass(frozen=True, slots=True)
class _Part:
    """One graph of a run on some devices. peak_bytes: by device. on_cpu: all of it runs on the
    CPU.
    """

    metrics: Metrics | None
    peak_bytes: Mapping[str, int]
    measured: bool
    watts_assumed: bool
    on_cpu: bool

    @staticmethod
    def of(row: Outcome) -> _Part:
        sizes = buffers(row.plan) if row.plan is not None else {}
        peaks = {name: held.peak_bytes for name, held in sizes.items()}
        host = row.topology.devices[row.topology.cpu].name
        return _Part(
            row.metrics, peaks, not row.estimated, row.watts_assumed, {*row.busy} <= {host}
        )


_Rows = Mapping[str, _Part]
_known: WeakKeyDictionary[PlanValue, _Rows] = WeakKeyDictionary()
"""Results by plan, because reports may be requested after each run. They hold no plans, to avoid
reference cycles.
"""


def advise(run: WholeRun) -> Advice:
    """Return the simulated effect of other devices on a run."""
    weighed = [graph.plan for graph in run.graphs if graph.plan.decision is not None]
    objective = objective_of(weighed[0]) if weighed else LATENCY
    tables = [_rows(graph) for graph in run.graphs]
    texts = [text for text in (tables[0] if tables else {}) if all(text in t for t in tables)]
    parts = {text: [table[text] for table in tables] for text in texts}
    now = _sum(AS_IT_IS, parts.pop(AS_IT_IS, []))
    if objective.word == "memory":  # the CPU's weights are not counted, so it would always win
        parts = {text: each for text, each in parts.items() if not all(p.on_cpu for p in each)}
    advice = Advice(objective, now, tuple(_sum(text, each) for text, each in parts.items()))

    def order(alternative: Alternative) -> tuple[bool, float, str]:
        value = advice.value(alternative)
        return value is None, value or 0.0, alternative.what

    return replace(advice, alternatives=tuple(sorted(advice.alternatives, key=order)))


def _rows(graph: GraphRun) -> _Rows:
    plan = graph.plan
    found = _known.get(plan)
    if found is None:
        topology = plan.topology
        changes = [
            Change(f"with another {spec.name}", with_device(topology, spec, link))
            for spec, link in _cards(topology)
        ]
        options = graph.options
        rows = compare_plan(
            plan,
            changes,
            with_cpu=options.with_cpu,
            overrides=options.overrides,
            copies=options.copies,
        ).rows
        found = {row.text: _Part.of(row) for row in rows[1:]}
        found[AS_IT_IS] = _Part.of(rows[0])
        _known[plan] = found
    return found


def _cards(topology: Topology) -> list[tuple[DeviceSpec, Link]]:
    """Return the devices that could be added once more, with their links; one of each group of
    equal devices.
    """
    found: dict[tuple[DeviceSpec, Link], tuple[DeviceSpec, Link]] = {}
    for device, spec in enumerate(topology.devices):
        if not topology.is_cpu(device) and not spec.disabled_reason and not _is_software(spec):
            card, link = replace(spec, memory_node=""), topology.link_out(device)
            found.setdefault((replace(card, name=""), link), (card, link))
    return list(found.values())


def _is_software(spec: DeviceSpec) -> bool:
    """Return True if a CPU driver implements the device, so that there cannot be another one."""
    return spec.limits.software


def _sum(what: str, parts: Sequence[_Part]) -> Alternative:
    """Return the summed metrics of graphs. A graph that a run executes twice is allocated once."""
    fitting = [part.metrics for part in parts if part.metrics is not None]
    metrics = None
    if len(fitting) == len(parts):
        held: dict[str, int] = {}
        for part in {id(part): part for part in parts}.values():
            for name, size_bytes in part.peak_bytes.items():
                held[name] = held.get(name, 0) + size_bytes
        metrics = Metrics(
            sum(each.latency_s for each in fitting),
            sum(each.period_s for each in fitting),
            max(held.values(), default=0),
            sum(each.energy_j or 0.0 for each in fitting),
        )
    measured = all(part.measured for part in parts)
    return Alternative(what, metrics, measured, any(part.watts_assumed for part in parts))
