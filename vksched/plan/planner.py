"""Planner: a Graph and a Machine in, a verified Plan out.

    placement -> splits -> memory -> does each device fit? --no--> lower its cap, once more
                                          | yes
                               copies that fit beside the model -> barriers -> plan

A device that is too small takes the nodes before a number, its cap, and the next devices take the
rest. The cap is searched between one that fits and one that does not, led by the bytes of the
weights, until the device is well filled. Copies come last and never move anything: what the model
leaves free decides how many there are.

Complexity: that of the stages, times a few tries for each device that is too small. Examples:
tests/test_plan.py, tests/test_plan_spill.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
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

WELL_FILLED = 0.9
"""The share of a device's memory from which on the search for a higher cap ends."""

TRIES = 8
"""Caps tried for a device before the best of them is taken."""


def plan_graph(
    graph: Graph,
    machine: Machine,
    *,
    policy: str = "priority",
    overrides: Overrides = (),
    copies: int | str = 1,
    resident: Mapping[int, frozenset[int]] | None = None,
    observed: Collection[int] = (),
) -> Plan:
    """Returns a verified plan that keeps every device within its memory.

    overrides: (node id or name pattern, device name); exact ids win, later patterns win over
    earlier. copies: slots, sets of activations and windows, so that as many runs can be under way;
    fewer where the model leaves no room for them; "auto" means two where the graph spans several
    devices, else one; one where it writes states, as each run reads what the one before it wrote.
    resident: for a device the weights, constants and states, by node id, that are there already.
    observed: node ids of computed values that are handed out as soon as they are there; what comes
    after them waits.

    Raises:
        PlanError: unknown policy, or a pattern that matches nothing. DeviceError: unknown device.
        OutOfMemory: what is left for the CPU is more than it has free.
    """
    place = POLICIES.get(policy)
    if place is None:
        raise PlanError(f"[plan] expected a policy of {', '.join(POLICIES)}, got {policy!r}")
    if copies != "auto" and (not isinstance(copies, int) or copies < 1):
        raise PlanError(f'[plan] expected "auto" or at least 1 copy, got {copies!r}')
    machine.verify()
    support = Support(graph, machine, resident, observed)

    def try_caps(caps: Caps) -> _Layout:
        placements, notes = place(support, overrides, caps)
        layout = _lay_out(support, placements, notes)
        if all(map(layout.fits, range(machine.cpu))):
            return layout
        return _lay_out(support, placements, notes, tight=True)

    layout, spills = _fit(support, try_caps)
    _check_host(layout)
    count, why = _most_copies(layout, copies)
    notes = (*layout.notes, *(spills[d] for d in sorted(spills)), *why)
    return verify_plan(_finish(layout, policy, count, notes))


Caps = list[int | None]
"""For each device the number of the first node that it must not take; None: it may take all."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A placement with its splits and its memory, for one copy.

    spans, inbox, outbox: for each device where values lie there, in activation memory and windows.
    memory: of the CPU without windows. host_slot_bytes: what each slot takes of the CPU's memory,
    the windows of devices that have them there included.
    """

    support: Support
    placements: tuple[Placement, ...]
    notes: tuple[str, ...]
    outlines: tuple[Outline, ...]
    final_waits: tuple[int, ...]
    spans: tuple[Mapping[int, Span], ...]
    inbox: tuple[Mapping[int, Span], ...]
    outbox: tuple[Mapping[int, Span], ...]
    memory: tuple[DeviceMemory, ...]
    host_slot_bytes: int

    @property
    def machine(self) -> Machine:
        return self.support.machine

    def room(self, device: int) -> int:
        """Returns the bytes left for a device once those before it in its memory have theirs."""
        pool = self.machine.pool(device)
        taken = sum(self.memory[d].needed_bytes for d in pool if d < device)
        return max(0, min(self.machine.devices[d].memory_bytes for d in pool) - taken)

    def fits(self, device: int) -> bool:
        return self.memory[device].needed_bytes <= self.room(device)


# -- fitting the model -----------------------------------------------------------------------------


def _fit(support: Support, try_caps: Callable[[Caps], _Layout]) -> tuple[_Layout, dict[int, str]]:
    """Returns a layout within every GPU's memory, and for each that was too small why."""
    machine = support.machine
    caps: Caps = [None] * len(machine.devices)
    spills: dict[int, str] = {}
    reasons: dict[int, str] = {}
    layout = try_caps(caps)
    while True:
        full = next((d for d in range(machine.cpu) if not layout.fits(d)), None)
        if full is None:
            return layout, spills
        need, room = layout.memory[full].needed_bytes, layout.room(full)
        reasons.setdefault(full, f"it would take {need} of {room} bytes")
        layout = _search_cap(layout, full, caps, try_caps)
        spills[full] = (
            f"{machine.devices[full].name} is full: {reasons[full]}; "
            f"nodes from number {caps[full]} on go elsewhere"
        )


def _search_cap(
    layout: _Layout, device: int, caps: Caps, try_caps: Callable[[Caps], _Layout]
) -> _Layout:
    """Lowers one cap, in place, until the device fits, and not much further.

    layout: one in which it does not. At 0 it takes nothing, so there is always an end.
    """
    low, high = 0, min(len(layout.support.computed), caps[device] or 1 << 62)
    found: _Layout | None = None
    starts, weight_bytes = _weights_by_first_reader(layout, device)
    tried = 0
    while found is None or (tried < TRIES and high - low > 1):
        memory, room = layout.memory[device], layout.room(device)
        if found is layout and memory.needed_bytes >= WELL_FILLED * room:
            break
        beside = memory.needed_bytes - (memory.weight_bytes - memory.resident_bytes)
        if beside < room and tried < TRIES // 2:
            guess = starts[bisect_right(weight_bytes, room - beside)]
        else:
            guess = (low + high) // 2
        caps[device] = max(low + 1, min(guess, high - 1)) if high - low > 1 else 0
        layout = try_caps(caps)
        tried += 1
        if layout.fits(device) or caps[device] == 0:
            found, low = layout, caps[device] or 0
        else:
            high = caps[device] or 0
    caps[device] = low
    return found


def _weights_by_first_reader(layout: _Layout, device: int) -> tuple[list[int], list[int]]:
    """Returns in order the nodes that are the first on a device to read a weight that is not there
    yet, with one past the last, and the bytes of these weights, summed up.
    """
    support = layout.support
    there = support.resident.get(device, frozenset())
    wanted = set(layout.memory[device].weights) - there
    starts: list[int] = []
    sizes: list[int] = []
    for number, node in enumerate(support.computed):
        if layout.placements[node.id].device == device:
            for value in wanted.intersection(support.operands[node.id]):
                wanted.discard(value)
                starts.append(number)
                sizes.append(aligned(support.graph.words[value]) * 4)
    return [*starts, len(support.computed)], list(accumulate(sizes))


def _check_host(layout: _Layout) -> None:
    spec = layout.machine.devices[-1]
    need = layout.host_slot_bytes + layout.memory[-1].state_bytes
    if need > spec.memory_bytes:
        raise OutOfMemory(
            f"[plan] expected at most {spec.memory_bytes} bytes of free memory to be needed, got "
            f"{need} for what no other device takes; try smaller batches"
        )


def _most_copies(layout: _Layout, asked: int | str) -> tuple[int, tuple[str, ...]]:
    """Returns how many copies fit beside the model, at most those asked for, and a note when they
    are fewer.
    """
    several = len({outline.device for outline in layout.outlines}) > 1
    wanted = asked if isinstance(asked, int) else 1 + several
    if len(set(layout.support.graph.states.values())) < len(layout.support.graph.states):
        in_order = "each run reads the states that the one before it wrote"
        if isinstance(asked, int) and asked > 1:
            return 1, (f"copies: {asked} asked for, 1 made, as {in_order}",)
        return 1, ()
    best, why = wanted, ""
    for device, spec in enumerate(layout.machine.devices):
        if device == layout.machine.cpu:
            slot, free = layout.host_slot_bytes, spec.memory_bytes - layout.host_slot_bytes
        else:
            pool = layout.machine.pool(device)
            slot = sum(_slot_bytes(layout, d) for d in pool)
            free = layout.room(device) - sum(
                layout.memory[d].needed_bytes for d in pool if d >= device
            )
        fit = 1 + free // slot if slot else wanted
        if fit < best:
            best, why = fit, f"{spec.name} has room for {fit}: each takes {slot} bytes"
    if best == wanted or asked == "auto":
        return best, ()
    return best, (f"copies: {wanted} asked for, {best} made, as {why} beside the model",)


def _slot_bytes(layout: _Layout, device: int) -> int:
    """Returns what one slot takes of a GPU's own memory."""
    memory = layout.memory[device]
    windows = () if layout.machine.devices[device].windows_apart else memory.windows
    return 4 * (sum(memory.activation_pages) + sum(windows))


# -- memory and splits -----------------------------------------------------------------------------


def _lay_out(
    support: Support,
    placements: tuple[Placement, ...],
    notes: tuple[str, ...],
    tight: bool = False,
) -> _Layout:
    """tight: save memory at the price of barriers."""
    graph, machine = support.graph, support.machine
    outlines, final_waits = split_graph(support, placements)
    spans: list[dict[int, Span]] = [{} for _ in machine.devices]
    inbox: list[dict[int, Span]] = [{} for _ in machine.devices]
    outbox: list[dict[int, Span]] = [{} for _ in machine.devices]
    memory: list[DeviceMemory] = []
    host_slot_bytes = 0
    for device, spec in enumerate(machine.devices):
        weights = weights_of(graph, outlines, device)
        states = states_of(graph, outlines, device)
        program = Program(support, outlines, device)
        if spec.kind == "cpu":
            weight_bytes = sum(graph.nodes[w].type.host_bytes for w in weights)
            state_bytes = sum(graph.nodes[s].type.host_bytes for s in states)
            live = 4 * program.least
            peak = live + state_bytes
            memory.append(
                DeviceMemory(weights, weight_bytes, (), (), (), peak, 0, states, state_bytes)
            )
            host_slot_bytes += live
            continue
        bytes_of = {w: aligned(graph.words[w]) * 4 for w in (*weights, *states)}
        here = [o for o in outlines if o.device == device]
        page_words, own = spec.page_bytes // 4, spec.own_buffers
        spans[device], pages = assign_memory(program, page_words, own, tight)
        page_of = {state: len(pages) + number for number, state in enumerate(states)}
        for node_id, state in graph.states.items() if states else ():
            if state in page_of:
                spans[device][node_id] = Span(page_of[state], 0, graph.words[state])
        entering = [(v, graph.words[v]) for o in here for v, _ in o.entering]
        leaving = [(v, graph.words[v]) for o in here for v in o.leaving]
        inbox[device], in_pages = assign_window(entering, page_words, own)
        outbox[device], out_pages = assign_window(leaving, page_words, own)
        windows_bytes = 4 * (sum(in_pages) + sum(out_pages))
        if spec.windows_apart:
            host_slot_bytes += windows_bytes
        weight_bytes = sum(bytes_of[w] for w in weights)
        state_bytes = sum(bytes_of[s] for s in states)
        own_windows = 0 if spec.windows_apart else windows_bytes
        peak = weight_bytes + state_bytes + 4 * sum(pages) + own_windows
        there = sum(bytes_of[w] for w in support.resident.get(device, ()) if w in bytes_of)
        slot = pages, in_pages, out_pages
        memory.append(DeviceMemory(weights, weight_bytes, *slot, peak, there, states, state_bytes))
    return _Layout(
        support,
        placements,
        notes,
        outlines,
        final_waits,
        tuple(spans),
        tuple(inbox),
        tuple(outbox),
        tuple(memory),
        host_slot_bytes,
    )


def _finish(layout: _Layout, policy: str, copies: int, notes: tuple[str, ...]) -> Plan:
    """Returns the plan of a layout for a number of copies."""
    cpu = layout.machine.cpu
    more = [_slot_bytes(layout, device) for device in range(cpu)] + [layout.host_slot_bytes]
    memory = [
        replace(m, peak_bytes=m.peak_bytes + (copies - 1) * slot)
        for m, slot in zip(layout.memory, more, strict=True)
    ]
    held = memory[cpu].state_bytes
    locations = {(d, v): span for d, own in enumerate(layout.spans) for v, span in own.items()}
    memory[cpu] = replace(memory[cpu], peak_bytes=copies * layout.host_slot_bytes + held)
    return Plan(
        graph=layout.support.graph,
        machine=layout.machine,
        policy=policy,
        copies=copies,
        placements=layout.placements,
        splits=tuple(_make_split(layout, i, o) for i, o in enumerate(layout.outlines)),
        final_waits=layout.final_waits,
        memory=tuple(memory),
        locations=MappingProxyType(locations),
        notes=notes,
    )


def _make_split(layout: _Layout, number: int, outline: Outline) -> Split:
    here, graph = outline.device, layout.support.graph
    spans, inbox, outbox = layout.spans[here], layout.inbox[here], layout.outbox[here]
    return Split(
        id=number,
        device=here,
        nodes=outline.nodes,
        copies_in=tuple(
            CopyIn(v, source, inbox.get(v, NOWHERE), spans.get(v, NOWHERE))
            for v, source in outline.entering
        ),
        copies_out=tuple(CopyOut(v, outbox.get(v, NOWHERE)) for v in outline.leaving),
        waits=outline.waits,
        barriers=find_barriers(split_items(graph, outline, spans)),
        levels=count_levels(graph, outline),
        inner_barriers=sum(
            [layout.support.inner_barriers(graph.nodes[n], here) for n in outline.nodes]
        ),
        observed=outline.observed,
    )
