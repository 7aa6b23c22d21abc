"""Planner: a Graph and a Machine in, a verified Plan out.

    placement -> splits -> memory -> barriers -> does it fit? --no--> lower the cap of the full
    device, again

Complexity: that of the stages, times the number of caps tried (each lower than the last). Examples:
tests/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import OutOfMemory, PlanError
from ..graph import Graph
from .barriers import count_levels, find_barriers, split_items
from .machine import Machine
from .memory import (
    Program,
    aligned,
    assign_memory,
    assign_window,
    largest_live_set,
    weights_of,
)
from .placement import Overrides, place_priority
from .plan import CopyIn, CopyOut, DeviceMemory, Placement, Plan, Span, Split
from .split import Outline, split_graph
from .support import Support
from .verify import verify_plan

POLICIES = {"priority": place_priority}

NOWHERE = Span(0, 0, 0)
"""The span of a value in numpy's memory."""


def plan_graph(
    graph: Graph,
    machine: Machine,
    *,
    policy: str = "priority",
    overrides: Overrides = (),
    copies: int = 1,
    resident: Mapping[int, frozenset[int]] | None = None,
) -> Plan:
    """Returns a verified plan that keeps every device within its memory.

    overrides: (node id or name pattern, device name); exact ids win, later patterns win over
    earlier. copies: slots, sets of activations and windows, so that as many runs can be under way.
    resident: for a device the weights and constants, by node id, that are there already.

    Raises:
        PlanError: unknown policy, or a pattern that matches nothing. DeviceError: unknown device.
        OutOfMemory: what is left for the CPU is more than it has free.
    """
    place = POLICIES.get(policy)
    if place is None:
        raise PlanError(f"[plan] expected a policy of {', '.join(POLICIES)}, got {policy!r}")
    if copies < 1:
        raise PlanError(f"[plan] expected at least 1 copy, got {copies}")
    machine.verify()
    support = Support(graph, machine, resident)
    caps: list[int | None] = [None] * len(machine.devices)
    spills: dict[int, str] = {}
    reasons: dict[int, str] = {}
    while True:
        placements, notes = place(support, overrides, caps)
        plan = _lay_out(
            support, policy, copies, placements, (*notes, *(spills[d] for d in sorted(spills)))
        )
        full = next((d for d in range(machine.cpu) if not _fits(plan, d)), None)
        if full is None:
            _check_cpu(plan)
            return verify_plan(plan)
        caps[full] = _lower_cap(plan, full, caps[full], support)
        spec, need = machine.devices[full], plan.memory[full].needed_bytes
        reasons.setdefault(full, f"it would take {need} of {_room(plan, full)} bytes")
        spills[full] = (
            f"{spec.name} is full: {reasons[full]}; nodes from number {caps[full]} on go elsewhere"
        )


def _room(plan: Plan, device: int) -> int:
    """Returns the bytes left for a device once those before it in the same memory have theirs."""
    pool = plan.machine.pool(device)
    taken = sum(plan.memory[d].needed_bytes for d in pool if d < device)
    return max(0, min(plan.machine.devices[d].memory_bytes for d in pool) - taken)


def _fits(plan: Plan, device: int) -> bool:
    return plan.memory[device].needed_bytes <= _room(plan, device)


def _check_cpu(plan: Plan) -> None:
    spec, need = plan.machine.devices[-1], plan.memory[-1].needed_bytes
    if need > spec.memory_bytes:
        raise OutOfMemory(
            f"[plan] expected at most {spec.memory_bytes} bytes of free memory to be needed, got "
            f"{need} for what no other device takes; try smaller batches or fewer copies"
        )


def _lower_cap(plan: Plan, device: int, cap: int | None, support: Support) -> int:
    """Returns a lower cap, in proportion to the memory missing; at 0 the device takes nothing."""
    count = len(support.computed)
    used = [i for i, n in enumerate(support.computed) if plan.placements[n.id].device == device]
    share = _room(plan, device) / plan.memory[device].needed_bytes
    keep = int(len(used) * share * 0.95)
    wanted = used[keep] if keep < len(used) else (used[-1] if used else 0)
    return max(0, min(wanted, (count if cap is None else cap) - 1))


def _lay_out(
    support: Support,
    policy: str,
    copies: int,
    placements: tuple[Placement, ...],
    notes: tuple[str, ...],
) -> Plan:
    graph, machine = support.graph, support.machine
    outlines, final_waits = split_graph(support, placements)
    spans: list[dict[int, Span]] = []
    inbox: list[dict[int, Span]] = []
    outbox: list[dict[int, Span]] = []
    memory: list[DeviceMemory] = []
    for device, spec in enumerate(machine.devices):
        weights = weights_of(graph, outlines, device)
        program = Program(support, outlines, device)
        if spec.kind == "cpu":
            for places in (spans, inbox, outbox):
                places.append({})
            weight_bytes = sum(graph.nodes[w].type.host_bytes for w in weights)
            live = largest_live_set(program.lifetimes())
            memory.append(DeviceMemory(weights, weight_bytes, (), (), (), 4 * copies * live))
            continue
        here = [o for o in outlines if o.device == device]
        page_words, own = spec.page_bytes // 4, spec.own_buffers
        bytes_of = {w: aligned(graph.words[w]) * 4 for w in weights}
        weight_bytes = sum(bytes_of.values())
        own_spans, pages = assign_memory(program, page_words, own)
        entering = [(v, graph.words[v]) for o in here for v, _ in o.entering]
        leaving = [(v, graph.words[v]) for o in here for v in o.leaving]
        in_spans, in_pages = assign_window(entering, page_words, own)
        out_spans, out_pages = assign_window(leaving, page_words, own)
        spans.append(own_spans)
        inbox.append(in_spans)
        outbox.append(out_spans)
        slot_bytes = 4 * (sum(pages) + sum(in_pages) + sum(out_pages))
        peak = weight_bytes + copies * slot_bytes
        there = sum(bytes_of[w] for w in support.resident.get(device, ()) if w in bytes_of)
        memory.append(DeviceMemory(weights, weight_bytes, pages, in_pages, out_pages, peak, there))
    splits = tuple(
        _make_split(graph, i, o, spans[o.device], inbox[o.device], outbox[o.device])
        for i, o in enumerate(outlines)
    )
    locations = {(d, value): span for d, own in enumerate(spans) for value, span in own.items()}
    return Plan(
        graph=graph,
        machine=machine,
        policy=policy,
        copies=copies,
        placements=placements,
        splits=splits,
        final_waits=final_waits,
        memory=tuple(memory),
        locations=MappingProxyType(locations),
        notes=notes,
    )


def _make_split(
    graph: Graph,
    number: int,
    outline: Outline,
    spans: Mapping[int, Span],
    inbox: Mapping[int, Span],
    outbox: Mapping[int, Span],
) -> Split:
    copies_in = tuple(
        CopyIn(v, source, inbox.get(v, NOWHERE), spans.get(v, NOWHERE))
        for v, source in outline.entering
    )
    copies_out = tuple(CopyOut(v, outbox.get(v, NOWHERE)) for v in outline.leaving)
    return Split(
        id=number,
        device=outline.device,
        nodes=outline.nodes,
        copies_in=copies_in,
        copies_out=copies_out,
        waits=outline.waits,
        barriers=find_barriers(split_items(graph, outline, spans)),
        levels=count_levels(graph, outline),
    )
