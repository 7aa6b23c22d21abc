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

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ...plan.types.objective_format import objective_of, percent
from ...plan.types.plan_types import PlanValue
from ...planner.comparison import Comparison, Outcome
from ...planner.what_if import MachineChange, compare_plan
from ...schedule.model.objectives import LATENCY
from ...topology.device_spec import DeviceSpec
from ...topology.edit import with_device
from ...topology.links import Link
from ...topology.topology import Topology
from .run_history import GraphRun, WholeRun

MAX_LINES = 3
"""The maximum number of lines of advice, the best first."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A view of the simulated alternatives of a run. comparison: the run as it is, and the
    alternatives, the best first.
    """

    comparison: Comparison

    @property
    def now(self) -> Outcome:
        """The run as it is."""
        return self.comparison.rows[0]

    @property
    def alternatives(self) -> tuple[Outcome, ...]:
        """The alternatives, the best first."""
        return self.comparison.rows[1:]

    @property
    def found(self) -> tuple[Outcome, ...]:
        """The alternatives that are better by more than the margin."""
        return tuple(c for c in self.alternatives if self.gain(c) > self.comparison.margin(c))

    def gain(self, alternative: Outcome) -> float:
        """Return the relative reduction of the objective; negative if it grows."""
        factor = self.comparison.factor(alternative)
        return 1 - factor if factor is not None else 0.0

    def lines(self) -> list[str]:
        """Return the advice as lines of text; one line if there is none."""
        found, value = self.found[:MAX_LINES], self.comparison.value
        formatter = self.comparison.formatter
        phrases = formatter.phrases
        if not self.alternatives:
            return []
        if not found:
            min_gain = percent(min(map(self.comparison.margin, self.alternatives)))
            text = f"no device to remove or to add would make {phrases.result} over {min_gain}"
            return [f"{text} {phrases.smaller}, by simulation"]
        now = formatter.text(value(self.now) or 0.0)
        return [
            f"{each.text}: {phrases.what} would {phrases.do} "
            f"{formatter.text(value(each) or 0.0)} instead of {now} "
            f"({percent(self.gain(each))} less), by simulation"
            + "".join(f"; {doubt}" for doubt in self._doubts(each))
            for each in found
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the advice as plain data: all alternatives, with a mark for those over the margin.

        value: the value of the objective.
        """
        worth = {each.text for each in self.found}

        def about(row: Outcome) -> dict[str, Any]:
            value, measured = self.comparison.value(row), not row.estimated
            return {"seconds": row.seconds, "value": value, "measured": measured}

        return {
            "by": "simulation",
            "objective": self.comparison.objective.name,
            **about(self.now),
            "alternatives": [
                {
                    "what": each.text,
                    **about(each),
                    "gain": self.gain(each),
                    "worth_it": each.text in worth,
                }
                for each in self.alternatives
            ],
        }

    def _doubts(self, alternative: Outcome) -> list[str]:
        """Return the assumptions of a value that were not measured; bytes are exact."""
        objective = self.comparison.objective
        estimated = self.now.estimated or alternative.estimated
        guessed = objective.word != "memory" and bool(estimated)
        assumed = objective.asks("energy") and alternative.watts_assumed
        caveats = {"devices are estimated, not measured": guessed, "watts are assumed": assumed}
        return [text for text, holds in caveats.items() if holds]


_known: WeakKeyDictionary[PlanValue, Comparison] = WeakKeyDictionary()
"""Results by plan, because reports may be requested after each run. They hold no plans, to avoid
reference cycles.
"""


def advise(run: WholeRun) -> Advice | None:
    """Return the simulated effect of other devices on a run; None if it has no graphs."""
    if not run.graphs:
        return None
    weighed = [graph.plan for graph in run.graphs if graph.plan.decision is not None]
    objective = objective_of(weighed[0]) if weighed else LATENCY
    found = Comparison.total([_compared(graph) for graph in run.graphs], objective)
    now, *others = found.rows
    if objective.word == "memory":  # the CPU's weights are not counted, so it would always win
        others = [row for row in others if not _is_on_cpu(row)]

    def order(alternative: Outcome) -> tuple[bool, float, str]:
        value = found.value(alternative)
        return value is None, value or 0.0, alternative.text

    return Advice(replace(found, rows=(now, *sorted(others, key=order))))


def _is_on_cpu(row: Outcome) -> bool:
    return {*row.busy} <= {row.topology.devices[row.topology.cpu].name}


def _compared(graph: GraphRun) -> Comparison:
    plan = graph.plan
    found = _known.get(plan)
    if found is None:
        topology = plan.topology
        changes = [
            MachineChange(f"with another {spec.name}", with_device(topology, spec, link))
            for spec, link in _cards(topology)
        ]
        options = graph.options
        compared = compare_plan(
            plan,
            changes,
            with_cpu=options.with_cpu,
            overrides=options.overrides,
            copies=options.copies,
        )
        rows = tuple(replace(row, plan=None) for row in compared.rows)
        found = _known[plan] = replace(compared, rows=rows)
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
