"""Advice: which device to remove or to add, and what a run would take then, by simulation.

    run     plan of graph 1   plan of graph 2          one run
    as it is          3 ms              9 ms            12 ms
    without gpu:1     3 ms              4 ms             7 ms    --> advice: over the margin
    + another gpu:0   3 ms              9 ms            12 ms

Each graph of a run is planned for each other machine, nothing is opened. The times of its graphs
add up, as they run one after the other. What is told must be over the margin by which a plan has to
win: the wider one where a device that works was never measured.
Complexity: a plan for each graph and change. Examples: tests/scheduler/test_advice.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ...machine.change import with_device
from ...machine.links import Link
from ...machine.spec import DeviceSpec, Machine
from ...plan.make.by_cost import MARGIN_ESTIMATED, MARGIN_MEASURED
from ...plan.value import PlanValue
from ...plan.what_if import Change, compare_plan
from ...units import format_seconds
from .runs import GraphRun, WholeRun

AS_IT_IS = "as it is"
MOST = 3
"""Lines of advice, the best first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A run on other devices, by simulation. what: "without vulkan:1", "vulkan:0 alone", "with
    another vulkan:0". seconds: None where a graph does not fit. measured: whether all devices that
    work were measured.
    """

    what: str
    seconds: float | None
    measured: bool

    def gain(self, now_s: float) -> float:
        """Returns by what part a run gets shorter; below 0 it gets longer."""
        return 1 - self.seconds / now_s if self.seconds is not None and now_s else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """seconds: of a run as it is, by simulation. choices: others, the fastest first."""

    seconds: float
    measured: bool
    choices: tuple[Choice, ...]

    @property
    def found(self) -> tuple[Choice, ...]:
        """The choices that are worth it: faster by more than the margin."""
        return tuple(c for c in self.choices if c.gain(self.seconds) > self._margin(c))

    def lines(self) -> list[str]:
        """Returns the advice as text; a line that says so where there is none."""
        found = self.found[:MOST]
        if not self.choices:
            return []
        if not found:
            told = "no device to remove or to add would make it faster"
            return [f"{told} by over {100 * self._least():.0f} %, by simulation"]
        now = format_seconds(self.seconds)
        return [
            f"{each.what}: a run would take {format_seconds(each.seconds or 0.0)} instead of {now} "
            f"({100 * each.gain(self.seconds):.0f} % less), by simulation"
            + ("" if self._known(each) else "; devices are estimated, not measured")
            for each in found
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the advice as plain data: all choices, and which of them are worth it."""
        worth = {each.what for each in self.found}
        return {
            "by": "simulation",
            "seconds": self.seconds,
            "measured": self.measured,
            "choices": [
                {**asdict(c), "gain": c.gain(self.seconds), "worth_it": c.what in worth}
                for c in self.choices
            ],
        }

    def _known(self, choice: Choice) -> bool:
        return self.measured and choice.measured

    def _margin(self, choice: Choice) -> float:
        return MARGIN_MEASURED if self._known(choice) else MARGIN_ESTIMATED

    def _least(self) -> float:
        return min(map(self._margin, self.choices), default=MARGIN_MEASURED)


_Rows = Mapping[str, Choice]
_known: WeakKeyDictionary[PlanValue, _Rows] = WeakKeyDictionary()
"""By plan, as somebody may ask after each run; without the plans, which would keep each other."""


def advise(run: WholeRun) -> Advice:
    """Returns what other devices would change for a run."""
    tables = [_choices(graph) for graph in run.graphs]
    whole = {
        text: _sum(text, [table[text] for table in tables])
        for text in (tables[0] if tables else {})
        if all(text in table for table in tables)
    }
    now = whole.pop(AS_IT_IS, Choice(AS_IT_IS, 0.0, True))
    others = sorted(whole.values(), key=lambda c: (c.seconds is None, c.seconds or 0.0, c.what))
    return Advice(now.seconds or 0.0, now.measured, tuple(others))


def _choices(graph: GraphRun) -> _Rows:
    plan = graph.plan
    found = _known.get(plan)
    if found is None:
        machine = plan.machine
        changes = [
            Change(f"with another {spec.name}", with_device(machine, spec, link))
            for spec, link in _cards(machine)
        ]
        asked = graph.asked
        rows = compare_plan(plan, changes, with_cpu=asked.with_cpu, overrides=asked.overrides).rows
        found = {row.text: Choice(row.text, row.seconds, not row.estimated) for row in rows}
        found[AS_IT_IS] = replace(found.pop(rows[0].text), what=AS_IT_IS)
        _known[plan] = found
    return found


def _cards(machine: Machine) -> list[tuple[DeviceSpec, Link]]:
    """Returns the devices of which there could be another one, and their links; the first of those
    that are equal.
    """
    host = machine.devices[machine.cpu].name
    found: dict[tuple[DeviceSpec, Link], tuple[DeviceSpec, Link]] = {}
    for device, spec in enumerate(machine.devices):
        if device != machine.cpu and not spec.out_of_use and not _is_software(spec):
            card, link = replace(spec, pool=""), machine.links.between(spec.name, host)
            found.setdefault((replace(card, name=""), link), (card, link))
    return list(found.values())


def _is_software(spec: DeviceSpec) -> bool:
    """Whether the CPU plays the device: there can be no other one."""
    return spec.limits.software


def _sum(what: str, parts: Sequence[Choice]) -> Choice:
    seconds = [part.seconds for part in parts if part.seconds is not None]
    fits = len(seconds) == len(parts)
    return Choice(what, sum(seconds) if fits else None, all(part.measured for part in parts))
