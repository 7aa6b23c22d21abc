"""What if: how long a run would take without a device, with that one alone, or with one more.

Problem: "does adding this card help?" is not told by its speed: it depends on what crosses, what
fits and what can be done side by side. Method: plan the same graph for each machine that is asked
about, and simulate a run of each plan, with nothing opened.

    machine        all   - fast   - small   fast alone   small alone   + rx6600
    plan           P0    P1       P2        as P2        as P1         P3
    one run        5 ms  19 ms    6 ms                                 5 ms

Devices that are equal and stand side by side are asked about once, and how many of them are enough:
2, 4, 8 and so on. Each row is a plan: its time is
that of the policy, which takes a single device where several win too little. Complexity: a plan for
each different device, twice. Examples: tests/plan/test_what_if.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ..errors import OutOfMemory
from ..machine.change import alone, changed, some, with_device, without
from ..machine.power import watts_of
from ..machine.spec import Machine
from ..schedule.objectives import LATENCY
from ..units import format_joules, format_seconds
from .make.by_cost import MARGIN_ESTIMATED, MARGIN_MEASURED
from .metrics import energy, period
from .planner import plan_graph
from .query import buffers
from .simulate import program_of, run_program
from .value import PlanValue

__all__ = [
    "Change", "Comparison", "Outcome", "PlanOn", "alone", "changed", "compare", "compare_plan",
    "outcome", "with_device", "without",
]  # fmt: skip

PlanOn = Callable[[Machine], PlanValue]
"""Makes the plan of one graph on a machine."""

SAME = 0.02
"""A difference of this share or less is none."""


@dataclass(frozen=True, slots=True)
class Change:
    """Another machine, and what to call it, as "+preset:rx6600"."""

    text: str
    machine: Machine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run takes on one machine.

    kind: "all" of the devices as they are, "without" one of `devices`, one of them "alone", "some"
    of them, or a "change". devices: several where they are equal and one stands for all. text: for
    a table.
    seconds: of one run by simulation; None where the graph does not fit, why_not tells why.
    seconds_per_run: the same in a stream, where the plan has several copies. busy: the share of a
    run that each device works, of those that do. estimated: those of them that nobody has measured.
    peak_bytes: what the plan takes of their memory. energy_j: of one run, idle devices included;
    watts_assumed: whether nobody has given the watts of one of them.
    """

    kind: str
    devices: tuple[str, ...]
    text: str
    machine: Machine
    plan: PlanValue | None
    seconds: float | None
    seconds_per_run: float | None
    busy: Mapping[str, float]
    estimated: tuple[str, ...]
    peak_bytes: Mapping[str, int]
    energy_j: float | None
    watts_assumed: bool = False
    why_not: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain data that json.dumps takes."""
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
    """Machines beside each other; the first row is the machine as it is.

    What is compared is one run, and the time between two results where plans are for throughput.
    """

    rows: tuple[Outcome, ...]

    @property
    def in_stream(self) -> bool:
        """Whether the time between two results of a stream is what is compared."""
        return self._aim == "throughput"

    @property
    def _aim(self) -> str:
        """The objective of the plans, "" for plans that weigh nothing."""
        plan = self.rows[0].plan
        return plan.decision.objective.name if plan and plan.decision else ""

    def factor(self, row: Outcome) -> float | None:
        """Returns how many times as long a run takes as on the machine as it is, in a stream where
        plans are for throughput; None where one of the two does not fit.
        """
        first, seconds = self._compared(self.rows[0]), self._compared(row)
        return seconds / first if seconds is not None and first else None

    def _compared(self, row: Outcome) -> float | None:
        """Returns the seconds that count; a plan without copies has one run after the other."""
        if self.in_stream and row.seconds_per_run is not None:
            return row.seconds_per_run
        return row.seconds

    def as_dict(self) -> list[dict[str, Any]]:
        """Returns the rows as plain data that json.dumps takes."""
        return [{**row.as_dict(), "factor": self.factor(row)} for row in self.rows]

    def as_text(self) -> str:
        """Returns a table, and what follows from it."""
        stream = any(row.seconds_per_run is not None for row in self.rows)
        joules = self._tells_energy
        more = [*(["in a stream"] if stream else []), *(["energy"] if joules else [])]
        table = [["", "one run", *more, "change", "at work"]]
        for row in self.rows:
            cells = [row.text, _seconds(row.seconds)]
            cells += [_seconds(row.seconds_per_run)] if stream else []
            cells += ["" if row.energy_j is None else format_joules(row.energy_j)] * joules
            table.append([*cells, self._change(row), _at_work(row)])
        wide = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  " + "  ".join(
                cell.ljust(w) if i in (0, len(cells) - 1) else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(cells, wide, strict=True))
            ).rstrip()
            for cells in table
        ]  # fmt: skip
        return "\n".join([*lines, *(f"  {line}" for line in self.findings())])

    def findings(self) -> tuple[str, ...]:
        """Returns what the rows say, in sentences, each device and each change once."""
        found: list[str] = []
        run, spared = self._run, self._spared
        if len(spared) > 1:
            found.append(
                f"{_names(spared)} can each be spared: {run} takes as long without one of them"
            )
        for row in self.rows[1:]:
            factor = self.factor(row)
            if row.kind == "without" and factor is not None:
                name = _one_of(row.devices)
                if len(spared) > 1 and name in spared:
                    continue
                if abs(factor - 1) <= SAME:
                    found.append(f"{name} can be spared: {run} takes as long without it")
                elif factor < 1:
                    less = f"without {name} {run} would take {_less(factor)} less"
                    sure = 1 - factor > self._margin(row)
                    found.append(less if sure else f"{less}, too little to count on")
                else:
                    found.append(
                        f"{name} is worth its place: {run} takes {_times(factor)} without it"
                    )
            elif row.kind == "alone" and factor is not None and factor < 1 - SAME:
                found.append(f"on {row.text} {run} would take {_less(factor)} less")
            elif row.kind == "change" and factor is not None:
                same = abs(factor - 1) <= SAME
                told = "changes nothing" if same else f"makes {run} {_times(factor)}"
                found.append(f"{row.text} {told}")
        found += self._enough()
        guessed = tuple(dict.fromkeys(name for row in self.rows for name in row.estimated))
        if guessed:
            verb = "is" if len(guessed) == 1 else "are"
            more = f" and {len(guessed) - 4} more" if len(guessed) > 4 else ""
            found.append(f"{', '.join(guessed[:4])}{more} {verb} estimated, not measured")
        if self._tells_energy:
            assumed = [d.name for d in self.rows[0].machine.devices if watts_of(d).assumed]
            if assumed:
                found.append(f"the watts of {_names(assumed)} are assumed")
        return tuple(found)

    def _margin(self, row: Outcome) -> float:
        """Returns the share by which a plan has to be better to count."""
        guessed = row.estimated or self.rows[0].estimated
        return MARGIN_ESTIMATED if guessed else MARGIN_MEASURED

    @property
    def _spared(self) -> list[str]:
        """The devices that are one of a kind, each of which makes no difference."""
        rows = [r for r in self.rows[1:] if r.kind == "without" and len(r.devices) == 1]
        factors = [self.factor(row) for row in rows]
        return [
            row.devices[0]
            for row, factor in zip(rows, factors, strict=True)
            if factor is not None and abs(factor - 1) <= SAME
        ]

    @property
    def _run(self) -> str:
        """What sentences call that which is compared."""
        return "a run in a stream" if self.in_stream else "a run"

    @property
    def _tells_energy(self) -> bool:
        """Whether the watts of a device are known, or plans are for little energy."""
        machines = [row.machine for row in self.rows]
        return "energy" in self._aim or any(
            d.busy_watts is not None for m in machines for d in m.devices
        )

    def _enough(self) -> list[str]:
        """Returns how many of equal devices take no longer than all, of each kind."""
        least: dict[tuple[str, ...], str] = {}
        run = self._run
        for row in self.rows:
            factor = self.factor(row)
            if factor is None or factor > 1 + SAME or len(row.devices) < 2:
                continue
            if row.kind == "alone":
                name = _one_of(row.devices)
                least.setdefault(row.devices, f"{name} is enough: {run} takes as long")
            elif row.kind == "some":
                least.setdefault(row.devices, f"{row.text} are enough: {run} takes as long")
        return list(least.values())

    def _change(self, row: Outcome) -> str:
        factor = self.factor(row)
        if row is self.rows[0]:
            return ""
        if factor is None:
            return "does not fit" if row.seconds is None else ""
        return "the same" if abs(factor - 1) <= SAME else _times(factor)


def compare(
    machine: Machine,
    plan_on: PlanOn,
    changes: Sequence[Change] = (),
    *,
    pinned: Sequence[str] = (),
    each: bool = True,
) -> Comparison:
    """Returns what a run takes on a machine, without each of its devices, with each alone, and
    after some changes. A device that is out of use is asked about neither way.

    plan_on: makes the plan for a machine. pinned: devices that are asked about one by one although
    others are equal to them, as the caller has placed something there. each: False leaves out the
    rows of single devices.
    """
    first = outcome("all", (), "as it is", machine, plan_on)
    rows = [first]
    seen = {machine: 0}

    def add(kind: str, devices: tuple[str, ...], text: str, other: Machine) -> None:
        at = seen.get(other)
        if at is None:
            seen[other] = len(rows)
            rows.append(outcome(kind, devices, text, other, plan_on))
        elif at:
            rows[at] = replace(rows[at], text=f"{rows[at].text}, {text}")

    if each:
        out_of_use = {spec.name for spec in machine.devices if spec.out_of_use}
        groups = [g for g in equal_devices(machine, pinned) if g[0] not in out_of_use]
        for group in groups:
            add("without", group, f"without {_one_of(group)}", without(machine, group[-1]))
        for group in groups:
            add("alone", group, f"{_one_of(group)} alone", alone(machine, group[0]))
        for group in groups:
            others = [d.name for d in machine.devices[:-1] if d.name not in group]
            for count in _powers(len(group) - 2):
                text = f"{count} of {_names(group)}"
                add("some", group, text, some(machine, [*others, *group[:count]]))
        host = machine.devices[machine.cpu].name
        add("alone", (host,), f"{host} alone", alone(machine, host))
    for change in changes:
        add("change", (), change.text, change.machine)
    return Comparison(tuple(rows))


def compare_plan(
    plan: PlanValue,
    changes: Sequence[Change] = (),
    *,
    with_cpu: bool = False,
    overrides: Sequence[tuple[str | int, str]] = (),
) -> Comparison:
    """Returns what a run of a plan's graph takes on its machine and on others: `compare` for a plan
    that is there already, whose time is the first row.

    with_cpu, overrides: as the plan was made with. An override that names a device which a machine
    lacks is left out there.
    """

    def plan_on(machine: Machine) -> PlanValue:
        if machine == plan.machine:
            return plan
        return plan_graph(
            plan.graph,
            machine,
            policy=plan.policy,
            objective=plan.decision.objective if plan.decision else LATENCY,
            overrides=present(overrides, machine, plan.machine),
            copies=plan.copies,
            with_cpu=with_cpu,
        )

    return compare(plan.machine, plan_on, changes, pinned=[device for _, device in overrides])


def present(
    overrides: Sequence[tuple[str | int, str]], machine: Machine, base: Machine
) -> tuple[tuple[str | int, str], ...]:
    """Returns the overrides less those that name a device of the base machine which this machine
    lacks.
    """
    names, before = ({spec.name for spec in m.devices} for m in (machine, base))
    return tuple(pair for pair in overrides if pair[1] in names or pair[1] not in before)


def outcome(
    kind: str, devices: tuple[str, ...], text: str, machine: Machine, plan_on: PlanOn
) -> Outcome:
    """Returns what a run takes on one machine."""
    try:
        plan = plan_on(machine)
    except OutOfMemory as error:
        why = " ".join(str(error).split())
        return Outcome(kind, devices, text, machine, None, None, None, {}, (), {}, None, False, why)
    program = program_of(plan)
    done = run_program(program)
    stream_s = period(program, plan.copies) if plan.copies > 1 else None
    whole_s = done.seconds or 1.0
    at_work = {plan.machine.devices[split.device].name for split in plan.splits}
    return Outcome(
        kind,
        devices,
        text,
        machine,
        plan,
        done.seconds,
        stream_s,
        {name: seconds / whole_s for name, seconds in done.busy_s.items() if name in at_work},
        tuple(d.name for d in machine.devices if d.name in at_work and not d.costs),
        {name: size.peak_bytes for name, size in buffers(plan).items() if name in at_work},
        energy(machine, done),
        any(watts_of(spec).assumed for spec in machine.devices),
    )


def equal_devices(machine: Machine, pinned: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Returns the names of all devices but the CPU, those together that are equal and stand side by
    side: with the same figures and links, and a memory of their own.
    """
    host, links = machine.devices[machine.cpu].name, machine.links

    def key(device: int) -> object:
        spec = machine.devices[device]
        shared = len(machine.pool(device)) > 1
        if shared or spec.name in pinned:
            return spec.name
        ways = links.between(spec.name, host), links.between(host, spec.name)
        return replace(spec, name="", pool=""), ways

    return tuple(
        tuple(machine.devices[d].name for d in group)
        for _, group in groupby(range(machine.cpu), key)
    )


def _powers(most: int) -> list[int]:
    """Returns 2, 4, 8 and so on."""
    return [1 << i for i in range(1, max(1, most).bit_length())]


def _one_of(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"one of {_names(group)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} .. {names[-1]}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def _times(factor: float) -> str:
    if factor < 1:
        return f"{_less(factor)} shorter"
    return f"{_percent(factor - 1)} longer" if factor < 2 else f"{factor:.3g} times as long"


def _less(factor: float) -> str:
    """Returns by how much a run gets shorter, which is never all of it."""
    return "over 99 %" if 0 < factor < 0.005 else _percent(1 - factor)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _at_work(row: Outcome) -> str:
    if row.plan is None:
        return row.why_not
    if len(row.busy) > 3:
        return f"{len(row.busy)} devices"
    return ", ".join(f"{name} {_percent(share)}" for name, share in row.busy.items())
