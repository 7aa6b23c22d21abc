"""What-if analysis: the duration of a run without a device, on one device alone, or with other
devices.

Problem: whether another card helps does not follow from its speed: it depends on transfers, memory
and concurrency. Method: plan the graph for each machine in question, and simulate a run of each
plan. No device is opened.

    machine        all   - fast   - small   fast alone   small alone   + rx6600
    plan           P0    P1       P2        as P2        as P1         P3
    one run        5 ms  19 ms    6 ms                                 5 ms

Equal adjacent devices are represented by one of them, and 2, 4, 8 and so on of them are compared
with all. Each row is a plan by the policy, which takes a single device if several gain too little.
Rows are compared by the objective of the plans. Complexity: a plan for each different device,
twice. Examples: tests/planner/test_what_if.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ..common.errors import OutOfMemory
from ..common.formatting import format_bytes, format_joules, format_seconds
from ..plan.simulation.plan_metrics import measure_plan
from ..plan.types.objective_format import ObjectiveFormatter, less, objective_of, percent
from ..plan.types.plan_types import PlanValue
from ..plan.types.query import buffers
from ..schedule import Metrics
from ..topology.edit import alone, changed, some, with_device, without
from ..topology.host_names import DRIVER, device_of, host_of
from ..topology.power import watts_of
from ..topology.topology import Topology
from .planner import plan_graph
from .search.select import margin_of

__all__ = [
    "Change", "Comparison", "Outcome", "PlanOn", "alone", "changed", "compare", "compare_plan",
    "outcome", "with_device", "without",
]  # fmt: skip

PlanOn = Callable[[Topology], PlanValue]
"""A function that plans one graph for a machine."""

SAME = 0.02
"""Relative differences up to this count as equal."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed machine and its label, such as "+preset:rx6600"."""

    text: str
    topology: Topology


@dataclass(frozen=True, slots=True)
class Outcome:
    """The simulated run of a graph on one machine.

    `kind` is "all" devices as they are, "without" one of `devices`, one of them "alone", "some" of
    them, or a "change"; `devices` are several if they are equal and one stands for all. `plan` and
    `metrics` are None if the graph does not fit, and `why_not` tells why. `busy` holds the fraction
    of the run in which each device works, and `peak_bytes` the memory that the plan needs there,
    for devices with work; `estimated` those of them without measured costs. `watts_assumed` is True
    if the power of a device is not specified.
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
            "peak_bytes": dict(self.peak_bytes),
            "energy_j": self.energy_j,
            "watts_assumed": self.watts_assumed,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of several machines; the first row is the machine as it is.

    Rows are compared by the objective of the plans.
    """

    rows: tuple[Outcome, ...]

    @property
    def formatter(self) -> ObjectiveFormatter:
        """The formatter of the objective that rows are compared by."""
        plans = [row.plan for row in self.rows if row.plan is not None and row.plan.decision]
        return ObjectiveFormatter.of(
            objective_of(plans[0] if plans else None), self.rows[0].metrics
        )

    def factor(self, row: Outcome) -> float | None:
        """Return the objective of a row relative to the first row; None if either does not fit."""
        return self.formatter.factor(row.metrics) if row.metrics is not None else None

    def as_dict(self) -> list[dict[str, Any]]:
        """Return the rows as JSON-serializable data. The key "value" holds the objective."""
        formatter = self.formatter
        return [
            {
                **row.as_dict(),
                "objective": formatter.objective.name,
                "value": None if row.metrics is None else formatter.value(row.metrics),
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
        asks, head = formatter.objective.asks, formatter.phrases.head
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
            found.append(f"{_names(spared)} can each be spared: {same} without one of them")
        for row in self.rows[1:]:
            factor = self.factor(row)
            if row.kind == "without" and factor is not None:
                name = _one_of(row.devices)
                if len(spared) > 1 and name in spared:
                    continue
                if abs(factor - 1) <= SAME:
                    found.append(f"{name} can be spared: {same} without it")
                elif factor < 1:
                    text = f"without {name} {self._would(factor)}"
                    sure = 1 - factor > self._margin(row)
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
        if formatter.objective.asks("memory"):
            topology = self.rows[0].topology
            host = topology.devices[topology.cpu].name
            found.append(f"the memory of {host} counts without weights, which are your arrays")
        if self._shows_energy:
            assumed = [d.name for d in self.rows[0].topology.devices if watts_of(d).assumed]
            if assumed:
                found.append(f"the watts of {_names(assumed)} are assumed")
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

    def _margin(self, row: Outcome) -> float:
        """Return the relative gain from which on a plan counts as better."""
        first = self.rows[0]
        assumed = row.watts_assumed or first.watts_assumed
        return margin_of(self.formatter.objective, not (row.estimated or first.estimated), assumed)

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
        return self.formatter.objective.asks("energy") or any(
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
                name = _one_of(row.devices)
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


def compare(
    topology: Topology,
    plan_on: PlanOn,
    changes: Sequence[Change] = (),
    *,
    pinned: Sequence[str] = (),
    each: bool = True,
) -> Comparison:
    """Return the runs on a machine, without each of its devices, on each alone, and after some
    changes. Disabled devices are skipped.

    plan_on: plans the graph for a machine. pinned: devices that are not grouped with equal ones,
    because the user has placed nodes there. each: False omits the rows of single devices.
    """
    first = outcome("all", (), "as it is", topology, plan_on)
    rows = [first]
    seen = {topology: 0}

    def add(kind: str, devices: tuple[str, ...], text: str, other: Topology) -> None:
        at = seen.get(other)
        if at is None:
            seen[other] = len(rows)
            rows.append(outcome(kind, devices, text, other, plan_on))
        elif at or kind == "change":  # a requested change always has a row
            rows[at] = replace(rows[at], text=f"{rows[at].text}, {text}")

    if each:
        disabled_reason = {spec.name for spec in topology.devices if spec.disabled_reason}
        hosts = equal_hosts(topology, pinned)
        asked = {DRIVER, *(group[0] for group in hosts)}
        groups = [
            group
            for group in equal_devices(topology, pinned)
            if group[0] not in disabled_reason and host_of(group[0]) in asked
        ]
        for group in groups:
            add("without", group, f"without {_one_of(group)}", without(topology, group[-1]))
        for group in groups:
            add("alone", group, f"{_one_of(group)} alone", alone(topology, group[0]))
        for group in groups:
            others = [d.name for d in topology.devices[:-1] if d.name not in group]
            for count in _powers(len(group) - 2):
                text = f"{count} of {_names(group)}"
                add("some", group, text, some(topology, [*others, *group[:count]]))
        for group in hosts:
            _add_hosts(topology, group, add)
        host = topology.devices[topology.cpu].name
        add("alone", (host,), f"{host} alone", alone(topology, host))
    for change in changes:
        add("change", (), change.text, change.topology)
    return Comparison(tuple(rows))


def _add_hosts(
    topology: Topology,
    group: tuple[str, ...],
    add: Callable[[str, tuple[str, ...], str, Topology], None],
) -> None:
    """Add the rows of equal hosts: without one of them, one alone, and some of them."""
    names = [spec.name for spec in topology.devices]
    others = [name for name in names if host_of(name) not in group]
    own = [name for name in names if host_of(name) == group[0]]
    add("without", group, f"without {_one_of(group)}", without(topology, group[-1]))
    add("alone", group, f"{_one_of(group)} alone", some(topology, own))
    for count in _powers(len(group) - 2):
        remaining = [name for name in names if host_of(name) in group[:count]]
        add("some", group, f"{count} of {_names(group)}", some(topology, [*others, *remaining]))


def compare_plan(
    plan: PlanValue,
    changes: Sequence[Change] = (),
    *,
    with_cpu: bool = False,
    overrides: Sequence[tuple[str | int, str]] = (),
    copies: int | str | None = None,
) -> Comparison:
    """Return the runs of a plan's graph on its machine and on others; the first row is the plan
    itself.

    with_cpu, overrides: the options of the plan. Overrides that name a device which
    a machine lacks are ignored there. copies: as in `plan_graph`; None: as many as the plan has.
    """

    def plan_on(topology: Topology) -> PlanValue:
        if topology == plan.topology:
            return plan
        return plan_graph(
            plan.graph,
            topology,
            policy=plan.policy,
            objective=objective_of(plan),
            overrides=present(overrides, topology, plan.topology),
            copies=plan.copies if copies is None else copies,
            with_cpu=with_cpu,
        )

    return compare(plan.topology, plan_on, changes, pinned=[device for _, device in overrides])


def present(
    overrides: Sequence[tuple[str | int, str]], topology: Topology, base: Topology
) -> tuple[tuple[str | int, str], ...]:
    """Return the overrides without those of devices that only the base machine has."""
    names, before = ({spec.name for spec in m.devices} for m in (topology, base))
    return tuple(pair for pair in overrides if pair[1] in names or pair[1] not in before)


def outcome(
    kind: str, devices: tuple[str, ...], text: str, topology: Topology, plan_on: PlanOn
) -> Outcome:
    """Return the simulated run on one machine."""
    try:
        plan = plan_on(topology)
    except OutOfMemory as error:
        why = " ".join(str(error).split())
        return Outcome(kind, devices, text, topology, None, None, {}, (), {}, False, why)
    metrics, done = measure_plan(plan)
    whole_s = done.seconds or 1.0
    at_work = {plan.topology.devices[device].name for device in plan.working}
    return Outcome(
        kind,
        devices,
        text,
        topology,
        plan,
        metrics,
        {name: seconds / whole_s for name, seconds in done.busy_s.items() if name in at_work},
        tuple(d.name for d in topology.devices if d.name in at_work and not d.costs),
        {name: size.peak_bytes for name, size in buffers(plan).items() if name in at_work},
        any(watts_of(spec).assumed for spec in topology.devices),
    )


def equal_devices(topology: Topology, pinned: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Group non-CPU devices that are interchangeable: adjacent in priority, with equal specs and
    links and separate memory.
    """

    def key(device: int) -> object:
        spec = topology.devices[device]
        shared = len(topology.memory_peers(device)) > 1
        if shared or spec.name in pinned:
            return spec.name
        host, ways = topology.host_of(device), (topology.link_out(device), topology.link_in(device))
        return replace(spec, name="", memory_node=""), ways, host

    return tuple(
        tuple(topology.devices[d].name for d in group)
        for _, group in groupby(range(topology.cpu), key)
    )


def equal_hosts(topology: Topology, pinned: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Group remote hosts with equal devices and links; hosts with a pin stay alone."""
    wires: dict[str, list[str]] = {host: [] for host in topology.hosts}
    host_by_memory = {topology.memory_of(host): host for host in topology.hosts}
    for a, b, link in topology.links.pairs:
        if a in host_by_memory and b in host_by_memory:
            for end, other in ((a, b), (b, a)):
                own = f"{link} {other if host_by_memory[other] == DRIVER else ''}"
                wires[host_by_memory[end]].append(own)
    devices: dict[str, list[object]] = {host: [] for host in topology.hosts}
    for device, spec in enumerate(topology.devices):
        ways = topology.link_in(device), topology.link_out(device)
        devices[topology.host_of(device)].append((replace(spec, name=device_of(spec.name)), ways))
    alone_ = set(map(host_of, pinned))
    groups: dict[object, list[str]] = {}
    for host in topology.hosts:
        if host != DRIVER:
            key = host if host in alone_ else (tuple(devices[host]), tuple(sorted(wires[host])))
            groups.setdefault(key, []).append(host)
    return tuple(map(tuple, groups.values()))


def _powers(stop: int) -> list[int]:
    """Return the powers of two from 2 up to `stop`."""
    return [1 << i for i in range(1, max(1, stop).bit_length())]


def _one_of(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"one of {_names(group)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} .. {names[-1]}"


def _at_work(row: Outcome) -> str:
    if row.plan is None:
        return row.why_not
    if len(row.busy) > 3:
        return f"{len(row.busy)} devices"
    return ", ".join(f"{name} {percent(share)}" for name, share in row.busy.items())
