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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ..common.errors import OutOfMemory
from ..plan.simulation.plan_metrics import measure_plan
from ..plan.types.objective_format import objective_of
from ..plan.types.plan_types import PlanValue
from ..plan.types.query import buffers
from ..topology.edit import alone, changed, some, with_device, without
from ..topology.host_names import DRIVER, device_of, host_of
from ..topology.power import watts_of
from ..topology.topology import Topology
from .comparison import AS_IT_IS, Comparison, Outcome, names_of, one_of
from .planner import plan_graph

__all__ = [
    "Comparison", "MachineChange", "Outcome", "PlanOn", "alone", "changed", "compare",
    "compare_plan", "outcome", "with_device", "without",
]  # fmt: skip

PlanOn = Callable[[Topology], PlanValue]
"""A function that plans one graph for a machine."""


@dataclass(frozen=True, slots=True)
class MachineChange:
    """A changed machine and its label, such as "+preset:rx6600"."""

    text: str
    topology: Topology


def compare(
    topology: Topology,
    plan_on: PlanOn,
    changes: Sequence[MachineChange] = (),
    *,
    pinned: Sequence[str] = (),
    each: bool = True,
) -> Comparison:
    """Return the runs on a machine, without each of its devices, on each alone, and after some
    changes. Disabled devices are skipped.

    plan_on: plans the graph for a machine. pinned: devices that are not grouped with equal ones,
    because the user has placed nodes there. each: False omits the rows of single devices.
    """
    first = outcome("all", (), AS_IT_IS, topology, plan_on)
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
            add("without", group, f"without {one_of(group)}", without(topology, group[-1]))
        for group in groups:
            add("alone", group, f"{one_of(group)} alone", alone(topology, group[0]))
        for group in groups:
            others = [d.name for d in topology.devices[:-1] if d.name not in group]
            for count in _powers(len(group) - 2):
                text = f"{count} of {names_of(group)}"
                add("some", group, text, some(topology, [*others, *group[:count]]))
        for group in hosts:
            _add_hosts(topology, group, add)
        host = topology.devices[topology.cpu].name
        add("alone", (host,), f"{host} alone", alone(topology, host))
    for change in changes:
        add("change", (), change.text, change.topology)
    plans = [row.plan for row in rows if row.plan is not None and row.plan.decision]
    return Comparison(tuple(rows), objective_of(plans[0] if plans else None))


def _add_hosts(
    topology: Topology,
    group: tuple[str, ...],
    add: Callable[[str, tuple[str, ...], str, Topology], None],
) -> None:
    """Add the rows of equal hosts: without one of them, one alone, and some of them."""
    names = [spec.name for spec in topology.devices]
    others = [name for name in names if host_of(name) not in group]
    own = [name for name in names if host_of(name) == group[0]]
    add("without", group, f"without {one_of(group)}", without(topology, group[-1]))
    add("alone", group, f"{one_of(group)} alone", some(topology, own))
    for count in _powers(len(group) - 2):
        remaining = [name for name in names if host_of(name) in group[:count]]
        add("some", group, f"{count} of {names_of(group)}", some(topology, [*others, *remaining]))


def compare_plan(
    plan: PlanValue,
    changes: Sequence[MachineChange] = (),
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
        {name: size.peak_bytes for name, size in buffers(plan).items()},
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
