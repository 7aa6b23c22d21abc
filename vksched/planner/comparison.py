"""Comparison: the simulated runs of graphs on several machines, by the objective of their plans.

    one run        graph 1   graph 2   sum
    as it is          3 ms      9 ms   12 ms
    without gpu:1     3 ms      4 ms    7 ms    factor 0.58

Comparisons of graphs that run in sequence can be added up. Complexity: O(rows * graphs). Examples:
tests/planner/test_what_if.py, tests/engine/test_advice.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..common.formatting import format_bytes, format_joules, format_seconds
from ..plan.types.objective_format import ObjectiveFormatter, less, percent
from ..plan.types.plan_types import PlanValue
from ..schedule import Metrics, Objective
from ..topology.power import watts_of
from ..topology.topology import Topology
from .search.select import margin_of

AS_IT_IS = "as it is"
"""The text of the machine without a change."""
SAME = 0.02
"""Relative differences up to this count as equal."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The simulated run of a graph, or of several in sequence, on one machine.

    `kind` is "all" devices as they are, "without" one of `devices`, one of them "alone", "some" of
    them, or a "change"; `devices` are several if they are equal and one stands for all. `metrics`
    is None if a graph does not fit, and `why_not` tells why; so is `plan`, and for several graphs.
    `busy` holds the fraction of the run in which each device works, for devices with work;
    `estimated` those of them without measured costs. `peak_bytes` is the memory that plans need on
    each device. `watts_assumed` is True if the power of a device is not specified.
    """

    kind: str
    devices: tuple[str, ...]
    text: str
    topology: Topology
    plan: PlanValue | None
    metrics: Metrics | None
    busy: Mapping[str, float]
    estimated: tuple[str, ...]
    peak_bytes: Mapping[str, int]
    watts_assumed: bool = False
    why_not: str = ""

    @property
    def seconds(self) -> float | None:
        """The latency of one run; None if the graph does not fit."""
        return self.metrics.latency_s if self.metrics is not None else None

    @property
    def seconds_per_run(self) -> float | None:
        """The time between two results of a stream; None if the plan has one copy."""
        several = self.plan is not None and self.plan.copies > 1
        return self.metrics.period_s if self.metrics is not None and several else None

    @property
    def energy_j(self) -> float | None:
        """The energy of one run in joules, idle devices included; None if it is unknown."""
        return self.metrics.energy_j if self.metrics is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-serializable data."""
        return {
            "kind": self.kind,
            "devices": list(self.devices),
            "text": self.text,
            "seconds": self.seconds,
            "seconds_per_run": self.seconds_per_run,
            "busy": dict(self.busy),
            "estimated": list(self.estimated),
            "peak_bytes": {name: self.peak_bytes[name] for name in self.busy},
            "energy_j": self.energy_j,
            "watts_assumed": self.watts_assumed,
            "why_not": self.why_not,
        }


def _total(rows: Sequence[Outcome]) -> Outcome:
    """Return the outcome of graphs that run in sequence on one machine.

    Seconds and joules add up. So do bytes on a device, because all graphs stay allocated; a graph
    that runs twice is allocated once.
    """
    found = [row.metrics for row in rows if row.metrics is not None]
    held: dict[str, int] = {}
    for row in {id(row): row for row in rows}.values():
        for name, size_bytes in row.peak_bytes.items():
            held[name] = held.get(name, 0) + size_bytes
    metrics = Metrics(
        sum(each.latency_s for each in found),
        sum(each.period_s for each in found),
        max(held.values(), default=0),
        sum(each.energy_j or 0.0 for each in found),
    )
    busy: dict[str, float] = {}
    for row in rows:
        for name, share in row.busy.items():
            part = (row.seconds or 0.0) / (metrics.latency_s or 1.0)
            busy[name] = busy.get(name, 0.0) + share * part
    return replace(
        rows[0],
        plan=None,
        metrics=metrics if len(found) == len(rows) else None,
        busy=busy,
        estimated=tuple(dict.fromkeys(name for row in rows for name in row.estimated)),
        peak_bytes=held,
        watts_assumed=any(row.watts_assumed for row in rows),
        why_not=next((row.why_not for row in rows if row.why_not), ""),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of several machines; the first row is the machine as it is.

    Rows are compared by the objective of the plans.
    """

    rows: tuple[Outcome, ...]
    objective: Objective

    @staticmethod
    def total(each: Sequence[Comparison], objective: Objective) -> Comparison:
        """Return the comparison of one or more graphs that run in sequence, with the rows that all
        of them have.
        """
        tables = [{row.text: row for row in one.rows} for one in each]
        rows = [[table.get(text) for table in tables] for text in tables[0]]
        known = [found for row in rows if len(found := [one for one in row if one]) == len(each)]
        return Comparison(tuple(map(_total, known)), objective)

    @property
    def formatter(self) -> ObjectiveFormatter:
        """The formatter of the objective that rows are compared by."""
        return ObjectiveFormatter.of(self.objective, self.rows[0].metrics)

    def value(self, row: Outcome) -> float | None:
        """Return the objective of a row; None if it does not fit."""
        return self.formatter.value(row.metrics) if row.metrics is not None else None

    def factor(self, row: Outcome) -> float | None:
        """Return the objective of a row relative to the first row; None if either does not fit."""
        return self.formatter.factor(row.metrics) if row.metrics is not None else None

    def as_dict(self) -> list[dict[str, Any]]:
        """Return the rows as JSON-serializable data. The key "value" holds the objective."""
        return [
            {
                **row.as_dict(),
                "objective": self.objective.name,
                "value": self.value(row),
                "factor": self.factor(row),
            }
            for row in self.rows
        ]

    def as_text(self) -> str:
        """Return a table of the rows, and the findings."""
        columns = self._columns()
        table = [["", *columns, "change", "at work"]]
        for row in self.rows:
            cells = ["" if row.metrics is None else text(row.metrics) for text in columns.values()]
            table.append([row.text, *cells, self._change(row), _at_work(row)])
        wide = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  " + "  ".join(
                cell.ljust(w) if i in (0, len(cells) - 1) else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(cells, wide, strict=True))
            ).rstrip()
            for cells in table
        ]  # fmt: skip
        return "\n".join([*lines, *(f"  {line}" for line in self.findings())])

    def _columns(self) -> dict[str, Callable[[Metrics], str]]:
        """Return formatters by column: the latency, the objective, and further known metrics."""
        formatter = self.formatter
        asks, head = self.objective.asks, formatter.phrases.head
        columns: dict[str, Callable[[Metrics], str]] = {
            "one run": lambda found: format_seconds(found.latency_s)
        }
        if asks("throughput") or any(row.seconds_per_run is not None for row in self.rows):
            columns["in a stream"] = lambda found: format_seconds(found.period_s)
        if asks("memory"):
            columns["peak"] = lambda found: format_bytes(round(found.peak_bytes or 0))
        if self._shows_energy:
            columns["energy"] = lambda found: format_joules(found.energy_j or 0.0)
        if head not in columns:  # a mix
            columns[head] = lambda found: formatter.text(formatter.value(found))
        return columns

    def findings(self) -> tuple[str, ...]:
        """Return conclusions from the rows as sentences, one for each device and each change."""
        found: list[str] = []
        formatter, spared = self.formatter, self._spared
        phrases = formatter.phrases
        same = f"{phrases.what} {phrases.does} as {phrases.large}"
        if len(spared) > 1:
            found.append(f"{names_of(spared)} can each be spared: {same} without one of them")
        for row in self.rows[1:]:
            factor = self.factor(row)
            if row.kind == "without" and factor is not None:
                name = one_of(row.devices)
                if len(spared) > 1 and name in spared:
                    continue
                if abs(factor - 1) <= SAME:
                    found.append(f"{name} can be spared: {same} without it")
                elif factor < 1:
                    text = f"without {name} {self._would(factor)}"
                    sure = 1 - factor > self.margin(row)
                    found.append(text if sure else f"{text}, too little to count on")
                else:
                    found.append(
                        f"{name} is worth its place: {phrases.what} {phrases.does} "
                        f"{formatter.times(factor)} without it"
                    )
            elif row.kind == "alone" and factor is not None and factor < 1 - SAME:
                found.append(f"on {row.text} {self._would(factor)}{self._why_not(row)}")
            elif row.kind == "change" and factor is not None:
                changes = abs(factor - 1) > SAME
                effect = (
                    f"makes {phrases.result} {formatter.times(factor)}"
                    if changes
                    else "changes nothing"
                )
                found.append(f"{row.text} {effect}")
        found += self._enough(same)
        guessed = tuple(dict.fromkeys(name for row in self.rows for name in row.estimated))
        if guessed:
            verb = "is" if len(guessed) == 1 else "are"
            more = f" and {len(guessed) - 4} more" if len(guessed) > 4 else ""
            found.append(f"{', '.join(guessed[:4])}{more} {verb} estimated, not measured")
        if self.objective.asks("memory"):
            topology = self.rows[0].topology
            host = topology.devices[topology.cpu].name
            found.append(f"the memory of {host} counts without weights, which are your arrays")
        if self._shows_energy:
            assumed = [d.name for d in self.rows[0].topology.devices if watts_of(d).assumed]
            if assumed:
                found.append(f"the watts of {names_of(assumed)} are assumed")
        return tuple(found)

    def _why_not(self, row: Outcome) -> str:
        """Return why the plan does not choose a device that is better alone."""
        first, (name, *_) = self.rows[0].plan, row.devices
        decision = first.decision if first is not None else None
        if decision is None or name in decision.devices:
            return ""
        return f"; {name} did not compete: it has what others cannot run, and what is placed on it"

    def _would(self, factor: float) -> str:
        phrases = self.formatter.phrases
        return f"{phrases.what} would {phrases.do} {less(factor)} {phrases.less}"

    def margin(self, row: Outcome) -> float:
        """Return the relative gain from which on a plan counts as better."""
        first = self.rows[0]
        assumed = row.watts_assumed or first.watts_assumed
        return margin_of(self.objective, not (row.estimated or first.estimated), assumed)

    @property
    def _spared(self) -> list[str]:
        """The devices without equals whose removal makes no difference."""
        rows = [r for r in self.rows[1:] if r.kind == "without" and len(r.devices) == 1]
        factors = [self.factor(row) for row in rows]
        return [
            row.devices[0]
            for row, factor in zip(rows, factors, strict=True)
            if factor is not None and abs(factor - 1) <= SAME
        ]

    @property
    def _shows_energy(self) -> bool:
        """True if the power of a device is known, or if plans minimize energy."""
        topologies = [row.topology for row in self.rows]
        return self.objective.asks("energy") or any(
            d.busy_watts is not None for m in topologies for d in m.devices
        )

    def _enough(self, same: str) -> list[str]:
        """Return for each kind of equal devices how many suffice, as sentences."""
        least: dict[tuple[str, ...], str] = {}
        for row in self.rows:
            factor = self.factor(row)
            if factor is None or factor > 1 + SAME or len(row.devices) < 2:
                continue
            if row.kind == "alone":
                name = one_of(row.devices)
                least.setdefault(row.devices, f"{name} is enough: {same}")
            elif row.kind == "some":
                least.setdefault(row.devices, f"{row.text} are enough: {same}")
        return list(least.values())

    def _change(self, row: Outcome) -> str:
        factor = self.factor(row)
        if row is self.rows[0]:
            return ""
        if factor is None:
            return "does not fit" if row.seconds is None else ""
        return "the same" if abs(factor - 1) <= SAME else self.formatter.times(factor)


def one_of(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"one of {names_of(group)}"


def names_of(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} .. {names[-1]}"


def _at_work(row: Outcome) -> str:
    if row.metrics is None:
        return row.why_not
    if len(row.busy) > 3:
        return f"{len(row.busy)} devices"
    return ", ".join(f"{name} {percent(share)}" for name, share in row.busy.items())
