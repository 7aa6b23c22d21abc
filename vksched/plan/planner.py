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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
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
    live_words,
    locations_of,
    states_of,
    weights_of,
)
from .placement import NONE, WELL_FILLED, Caps, Overrides, place_priority
from .plan import CopyIn, CopyOut, DeviceMemory, Placement, Plan, Span, Split
from .split import Outline, split_graph
from .support import Support
from .verify import verify_plan

POLICIES = {"priority": place_priority}

NOWHERE = Span(0, 0, 0)
"""The span of a value in numpy's memory."""

PEAK_SHARE = 0.1
"""Of a device's nodes: so many around one moment may go elsewhere alone."""

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
        return _lay_out(support, *place(support, overrides, caps))

    layout, spills = _fit(support, try_caps)
    _check_host(layout)
    count, why = _most_copies(layout, copies)
    notes = (*layout.notes, *spills, *why, *_slow(machine))
    return verify_plan(_finish(layout, policy, count, notes))


@dataclass(frozen=True, slots=True)
class _Layout:
    """A placement with its splits and its memory, for one copy.

    memory: of the CPU without windows. host_slot_bytes: what each slot takes of the CPU's memory,
    the windows of devices that have them there included.
    """

    support: Support
    placements: tuple[Placement, ...]
    notes: tuple[str, ...]
    outlines: tuple[Outline, ...]
    final_waits: tuple[int, ...]
    locations: Mapping[tuple[int, int], Span]
    inbox: Mapping[tuple[int, int], Span]
    outbox: Mapping[tuple[int, int], Span]
    memory: tuple[DeviceMemory, ...]
    host_slot_bytes: int

    @property
    def machine(self) -> Machine:
        return self.support.machine

    def need(self, pool: Sequence[int]) -> int:
        """Returns the bytes that devices of one memory still have to allocate."""
        return sum(self.memory[d].needed_bytes for d in pool)

    def room(self, pool: Sequence[int]) -> int:
        """Returns the bytes of a memory."""
        return min(self.machine.devices[d].memory_bytes for d in pool)

    def fits(self, pool: Sequence[int]) -> bool:
        return self.need(pool) <= self.room(pool)


# -- fitting the model -----------------------------------------------------------------------------


def _pools(machine: Machine) -> list[tuple[int, ...]]:
    """Returns for each memory of a GPU the devices that share it."""
    return list(dict.fromkeys(machine.pool(d) for d in range(machine.cpu)))


def _fit(support: Support, try_caps: Callable[[Caps], _Layout]) -> tuple[_Layout, list[str]]:
    """Returns a layout within every GPU's memory, and for each that was too small why."""
    machine = support.machine
    count = len(machine.devices)
    caps = Caps([None] * count, [range(0)] * count)
    reasons: dict[tuple[int, ...], str] = {}
    layout = try_caps(caps)
    while True:
        full = next((pool for pool in _pools(machine) if not layout.fits(pool)), None)
        if full is None:
            break
        need, room = layout.need(full), layout.room(full)
        reasons.setdefault(full, f"it would take {need} of {room} bytes")
        peak = _find_peak(layout, full, caps)
        if peak is None:
            layout = _search_cap(layout, full, caps, try_caps)
        else:
            caps.peaks[full[0]] = peak
            layout = try_caps(caps)
    return layout, [
        f"{', '.join(machine.devices[d].name for d in pool)} is full: {why}; "
        f"nodes {_spilled(caps, pool[0])} go elsewhere"
        for pool, why in sorted(reasons.items())
    ]


def _spilled(caps: Caps, device: int) -> str:
    peak, first = caps.peaks[device], caps.first[device]
    parts = [f"number {peak[0]} to {peak[-1]}, which take most,"] if peak else []
    if first is not None:
        parts.append(f"from number {max(first, 0)} on")
    return " and ".join(parts)


def _find_peak(layout: _Layout, pool: tuple[int, ...], caps: Caps) -> range | None:
    """Returns the numbers of a few nodes in a row without which a device would have room, if there
    are such: a cap would turn all away that come after them, too.
    """
    device, support = pool[0], layout.support
    memory = layout.memory[device]
    besides = memory.needed_bytes - 4 * sum(memory.activation_pages)
    most_words = (layout.room(pool) - besides) // 4
    if len(pool) > 1 or most_words <= 0:
        return None
    live = live_words(find_lifetimes(support, layout.outlines, device))
    number = {node.id: i for i, node in enumerate(support.computed)}
    here = [number[n] for o in layout.outlines if o.device == device for n in o.nodes]
    found: list[int] = []
    position = 0
    for outline in layout.outlines:
        if outline.device == device:
            items = [support.readers[value] for value, _ in outline.entering]
            items += [(node_id,) for node_id in (*outline.nodes, *outline.leaving)]
            for nodes in items:
                if live.get(position, 0) > most_words:
                    found += [number[n] for n in nodes if n in outline.nodes]
                position += 1
    before = caps.peaks[device]
    peak = range(min((*found, *before)), max((*found, *before)) + 1) if found else before
    turned_away = sum(n in peak for n in here) + len(before)
    return peak if peak != before and turned_away <= max(2, PEAK_SHARE * len(here)) else None


def _search_cap(
    layout: _Layout, pool: tuple[int, ...], caps: Caps, try_caps: Callable[[Caps], _Layout]
) -> _Layout:
    """Lowers the cap of the devices of one memory, in place, until they fit, and not much further.

    layout: one in which they do not. With NONE they take nothing, so there is always an end.
    """
    before, low, high = caps.first[pool[0]], NONE, len(layout.support.computed)
    if before is not None:
        high = min(high, before)
    found: _Layout | None = None
    starts, weight_bytes = _weights_by_first_reader(layout, pool)
    tried = 0
    while found is None or (tried < TRIES and high - low > 1):
        need, room = layout.need(pool), layout.room(pool)
        if found is layout and need >= WELL_FILLED * room:
            break
        memories = [layout.memory[d] for d in pool]
        beside = need - sum(m.weight_bytes - m.resident_bytes for m in memories)
        if beside < room and tried < TRIES // 2:
            guess = starts[bisect_right(weight_bytes, room - beside)]
        else:
            guess = (low + high) // 2
        cap = max(low + 1, min(guess, high - 1)) if high - low > 1 else NONE
        for device in pool:
            caps.first[device] = cap
        layout = try_caps(caps)
        tried += 1
        if layout.fits(pool):
            found, low = layout, cap
        else:
            high = cap
    for device in pool:
        caps.first[device] = low
    return found


def _weights_by_first_reader(layout: _Layout, pool: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Returns in order the nodes that are the first on a device to read a weight that is not there
    yet, with one past the last, and the bytes of these weights, summed up.
    """
    support = layout.support
    wanted = {d: set(layout.memory[d].weights) - support.resident.get(d, frozenset()) for d in pool}
    starts: list[int] = []
    sizes: list[int] = []
    for number, node in enumerate(support.computed):
        missing = wanted.get(layout.placements[node.id].device, set())
        for value in missing.intersection(support.operands[node.id]):
            missing.discard(value)
            starts.append(number)
            sizes.append(aligned(support.graph.nodes[value].type.words) * 4)
    return [*starts, len(support.computed)], list(accumulate(sizes))


def _slow(machine: Machine) -> list[str]:
    return [
        f"{spec.name} takes {spec.slowdown:.3g} times as long as first thought, as measured: "
        "its submissions are shorter"
        for spec in machine.devices
        if spec.slowdown > 1
    ]


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
    cpu = layout.machine.cpu
    for pool in (*_pools(layout.machine), (cpu,)):
        spec = layout.machine.devices[pool[0]]
        if pool == (cpu,):
            slot, free = layout.host_slot_bytes, spec.memory_bytes - layout.host_slot_bytes
        else:
            slot = sum(_slot_bytes(layout, d) for d in pool)
            free = layout.room(pool) - layout.need(pool)
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
    support: Support, placements: tuple[Placement, ...], notes: tuple[str, ...]
) -> _Layout:
    graph, machine = support.graph, support.machine
    outlines, final_waits = split_graph(support, placements)
    locations: dict[tuple[int, int], Span] = {}
    inbox: dict[tuple[int, int], Span] = {}
    outbox: dict[tuple[int, int], Span] = {}
    memory: list[DeviceMemory] = []
    host_slot_bytes = 0
    for device, spec in enumerate(machine.devices):
        weights = weights_of(graph, outlines, device)
        states = states_of(graph, outlines, device)
        if spec.kind == "cpu":
            weight_bytes = sum(graph.nodes[w].type.host_bytes for w in weights)
            state_bytes = sum(graph.nodes[s].type.host_bytes for s in states)
            live = 4 * largest_live_set(find_lifetimes(support, outlines, device))
            peak = live + state_bytes
            memory.append(
                DeviceMemory(weights, weight_bytes, (), (), (), peak, 0, states, state_bytes)
            )
            host_slot_bytes += live
            continue
        bytes_of = {w: aligned(graph.nodes[w].type.words) * 4 for w in (*weights, *states)}
        here = [o for o in outlines if o.device == device]
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
        locations,
        inbox,
        outbox,
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
        locations=MappingProxyType(dict(layout.locations)),
        notes=notes,
    )


def _make_split(layout: _Layout, number: int, outline: Outline) -> Split:
    here, graph = outline.device, layout.support.graph
    copies_in = tuple(
        CopyIn(
            v,
            source,
            layout.inbox.get((here, v), NOWHERE),
            layout.locations.get((here, v), NOWHERE),
        )
        for v, source in outline.entering
    )
    copies_out = tuple(CopyOut(v, layout.outbox.get((here, v), NOWHERE)) for v in outline.leaving)
    items = split_items(graph, here, copies_in, outline.nodes, copies_out, layout.locations)
    return Split(
        number,
        here,
        outline.nodes,
        copies_in,
        copies_out,
        outline.waits,
        find_barriers(items),
        outline.observed,
    )
