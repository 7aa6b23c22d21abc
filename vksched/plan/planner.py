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
from .barriers import find_barriers, split_items
from .machine import Machine
from .memory import (
    aligned,
    assign_spans,
    assign_window,
    find_lifetimes,
    largest_live_set,
    locations_of,
    states_of,
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
    resident: for a device the weights, constants and states, by node id, that are there already. A
        graph that writes states has one slot, as each run reads what the one before it wrote.

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
    if any(graph.nodes[n].op == "assign" for n in graph.states):
        copies = 1  # each run reads what the one before it wrote
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
    locations: dict[tuple[int, int], Span] = {}
    inbox: dict[tuple[int, int], Span] = {}
    outbox: dict[tuple[int, int], Span] = {}
    memory: list[DeviceMemory] = []
    for device, spec in enumerate(machine.devices):
        weights = weights_of(graph, outlines, device)
        states = states_of(graph, outlines, device)
        if spec.kind == "cpu":
            bytes_of = {w: graph.nodes[w].type.host_bytes for w in (*weights, *states)}
        else:
            bytes_of = {w: aligned(graph.nodes[w].type.words) * 4 for w in (*weights, *states)}
        weight_bytes = sum(bytes_of[w] for w in weights)
        state_bytes = sum(bytes_of[s] for s in states)
        here = [o for o in outlines if o.device == device]
        if spec.kind == "cpu":
            live = largest_live_set(find_lifetimes(support, outlines, device))
            peak = 4 * copies * live + state_bytes
            memory.append(
                DeviceMemory(weights, weight_bytes, (), (), (), peak, 0, states, state_bytes)
            )
            continue
        page_words, own = spec.page_bytes // 4, spec.own_buffers
        spans, pages = assign_spans(find_lifetimes(support, outlines, device), page_words, own)
        locations.update(locations_of(spans, device))
        page_of = {state: len(pages) + number for number, state in enumerate(states)}
        for node_id, state in graph.states.items() if states else ():
            if state in page_of:
                words = graph.nodes[state].type.words
                locations[device, node_id] = Span(page_of[state], 0, words)
        entering = [(v, graph.nodes[v].type.words) for o in here for v, _ in o.entering]
        leaving = [(v, graph.nodes[v].type.words) for o in here for v in o.leaving]
        in_spans, in_pages = assign_window(entering, page_words, own)
        out_spans, out_pages = assign_window(leaving, page_words, own)
        inbox.update({(device, v): in_spans[v] for v, _ in entering})
        outbox.update({(device, v): out_spans[v] for v, _ in leaving})
        slot_bytes = 4 * (sum(pages) + sum(in_pages) + sum(out_pages))
        peak = weight_bytes + state_bytes + copies * slot_bytes
        there = sum(bytes_of[w] for w in support.resident.get(device, ()) if w in bytes_of)
        windows = pages, in_pages, out_pages
        memory.append(
            DeviceMemory(weights, weight_bytes, *windows, peak, there, states, state_bytes)
        )
    splits = tuple(
        _make_split(graph, i, outline, locations, inbox, outbox)
        for i, outline in enumerate(outlines)
    )
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
    locations: dict[tuple[int, int], Span],
    inbox: dict[tuple[int, int], Span],
    outbox: dict[tuple[int, int], Span],
) -> Split:
    here = outline.device
    copies_in = tuple(
        CopyIn(v, source, inbox.get((here, v), NOWHERE), locations.get((here, v), NOWHERE))
        for v, source in outline.entering
    )
    copies_out = tuple(CopyOut(v, outbox.get((here, v), NOWHERE)) for v in outline.leaving)
    items = split_items(graph, here, copies_in, outline.nodes, copies_out, locations)
    return Split(
        number, here, outline.nodes, copies_in, copies_out, outline.waits, find_barriers(items)
    )
