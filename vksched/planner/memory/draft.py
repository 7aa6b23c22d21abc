"""Draft: splits and memory of a placement, before it is known whether they fit.

    placement -> splits -> where each value lies -> bytes of each device, for one copy
                                                          | fits, and so many copies
                                                          v
                                                        a Plan

Complexity: that of `split.py`, `memory.py` and `barriers.py`. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...plan.costs.op_support import Support
from ...plan.plan import Plan
from ...plan.types.decision import Decision
from ...plan.types.offsets import aligned
from ...plan.types.plan_types import (
    CopyIn,
    CopyOut,
    DeviceMemory,
    Placement,
    Span,
    Split,
    stage_begins,
)
from ...plan.types.split_draft import Outline, count_levels
from ...topology.topology import Topology
from ..partition.barriers import find_barriers, split_items
from ..partition.splits import split_graph
from ..partition.stage_deps import Orders
from ..partition.streaming_windows import Windows
from .allocate import MemoryUse, assign_memory, states_of, weights_of
from .staging import assign_inbox, assign_window

NOWHERE = Span(0, 0, 0)
"""The span of a value in numpy's memory."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A placement with its splits and its memory, for one copy.

    spans, inbox, outbox: for each device where values lie there, in activation memory and windows.
    memory: for one copy. host_slot_bytes: what each slot takes of the memory of each CPU, the
    windows of devices that have them there included.
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
    host_slot_bytes: Mapping[int, int]

    @property
    def topology(self) -> Topology:
        return self.support.topology

    def need(self, peers: Sequence[int]) -> int:
        """Returns the bytes that devices of one memory still have to allocate."""
        return sum(self.memory[d].needed_bytes for d in peers)

    def room(self, peers: Sequence[int]) -> int:
        """Returns the bytes of a memory: where its devices say different things, the least of those
        that take something of it.
        """
        used = [d for d in peers if self.memory[d].needed_bytes] or peers
        return min(self.topology.devices[d].memory_bytes for d in used)

    def fits(self, peers: Sequence[int]) -> bool:
        return self.need(peers) <= self.room(peers)

    def slot_bytes(self, device: int) -> int:
        """Returns what one slot takes of a device's own memory."""
        memory = self.memory[device]
        if device in self.host_slot_bytes:
            return self.host_slot_bytes[device]
        windows = () if not self.topology.devices[device].unified_memory else memory.windows
        return 4 * (sum(memory.activation_pages) + sum(windows))


def make_draft(
    support: Support,
    placements: tuple[Placement, ...],
    notes: tuple[str, ...],
    tight: bool = False,
    ahead: bool = True,
    scarce: bool = False,
) -> Draft:
    """Returns the draft of a placement.

    notes: what to tell the user of it. tight: save memory at the price of barriers. ahead, scarce:
    see `Windows.of`.
    """
    graph, topology = support.graph, support.topology
    windows = Windows.of(topology, ahead, scarce)
    outlines, final_waits = split_graph(support, placements, windows)
    spans: list[dict[int, Span]] = [{} for _ in topology.devices]
    inbox: list[dict[int, Span]] = [{} for _ in topology.devices]
    outbox: list[dict[int, Span]] = [{} for _ in topology.devices]
    memory: list[DeviceMemory] = []
    own: dict[int, list[Outline]] = {}
    for outline in outlines:
        own.setdefault(outline.device, []).append(outline)
    windows_in: dict[str, int] = {}
    host_slot_bytes: dict[int, int] = {}
    for device, spec in enumerate(topology.devices):
        here = own.get(device, [])
        weights = weights_of(graph, here)
        states = states_of(graph, here)
        program = MemoryUse(support, here, device)
        if spec.kind == "cpu":
            there = windows_in.get(topology.host_of(device), 0)
            slot_bytes = host_slot_bytes[device] = 4 * program.least + there
            memory.append(_host_memory(support, device, weights, states, slot_bytes))
            continue
        bytes_of = {w: aligned(graph.words[w]) * 4 for w in (*weights, *states)}
        page_words, whole = spec.max_buffer_bytes // 4, spec.disable_aliasing
        spans[device], pages = assign_memory(program, page_words, whole, tight)
        page_of = {state: len(pages) + number for number, state in enumerate(states)}
        in_place = [pair for outline in here for pair in outline.in_place]
        for node_id, state in (*graph.states.items(), *in_place) if states else ():
            if state in page_of:
                spans[device][node_id] = Span(page_of[state], 0, graph.words[state])
        leaving = [(v, graph.words[v]) for o in here for v in o.leaving]
        inbox[device], in_pages = assign_inbox(graph, here, windows.sets, page_words, whole)
        outbox[device], out_pages = assign_window(leaving, page_words, whole)
        windows_bytes = 4 * (sum(in_pages) + sum(out_pages))
        if not spec.unified_memory:
            host = topology.host_of(device)
            windows_in[host] = windows_in.get(host, 0) + windows_bytes
        weight_bytes = sum(bytes_of[w] for w in weights)
        state_bytes = sum(bytes_of[s] for s in states)
        own_windows = 0 if not spec.unified_memory else windows_bytes
        peak = weight_bytes + state_bytes + 4 * sum(pages) + own_windows
        there = sum(bytes_of[w] for w in support.resident.get(device, ()) if w in bytes_of)
        slot = pages, in_pages, out_pages
        memory.append(DeviceMemory(weights, weight_bytes, *slot, peak, there, states, state_bytes))
    return Draft(
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


def _host_memory(
    support: Support, device: int, weights: tuple[int, ...], states: tuple[int, ...], slot: int
) -> DeviceMemory:
    """Returns what a CPU takes of its host's memory. slot: bytes of one slot. Weights of the caller
    are his own arrays; another host has copies of them.
    """
    size = {node: support.graph.nodes[node].type.host_bytes for node in (*weights, *states)}
    weight_bytes, state_bytes = (sum(size[node] for node in some) for some in (weights, states))
    peak, there = slot + state_bytes, 0
    if device != support.topology.cpu:
        peak += weight_bytes
        there = sum(size[node] for node in support.resident.get(device, ()) if node in size)
    return DeviceMemory(weights, weight_bytes, (), (), (), peak, there, states, state_bytes)


def memory_of(draft: Draft, copies: int) -> tuple[DeviceMemory, ...]:
    """Returns what a draft takes of each device with a number of copies."""
    more = map(draft.slot_bytes, range(len(draft.memory)))
    return tuple(
        replace(m, peak_bytes=m.peak_bytes + (copies - 1) * slot)
        for m, slot in zip(draft.memory, more, strict=True)
    )


def finish(
    draft: Draft,
    policy: str,
    copies: int,
    notes: tuple[str, ...],
    decision: Decision | None = None,
) -> Plan:
    """Returns the plan of a draft for a number of copies. decision: what it was chosen from."""
    locations = {(d, v): span for d, own in enumerate(draft.spans) for v, span in own.items()}
    graph = draft.support.graph
    orders = Orders(graph, draft.topology, draft.spans)
    return Plan(
        graph=graph,
        topology=draft.topology,
        policy=policy,
        copies=copies,
        placements=draft.placements,
        splits=tuple(_make_split(draft, i, o, orders) for i, o in enumerate(draft.outlines)),
        final_waits=draft.final_waits,
        memory=memory_of(draft, copies),
        locations=MappingProxyType(locations),
        notes=notes,
        decision=decision,
    )


def _make_split(draft: Draft, number: int, outline: Outline, orders: Orders) -> Split:
    here, graph = outline.device, draft.support.graph
    spans, inbox, outbox = draft.spans[here], draft.inbox[here], draft.outbox[here]
    whole = draft.support.topology.devices[here].disable_aliasing
    kept = {value for value, _ in outline.in_place}
    begins = stage_begins(outline.aside, len(outline.entering), len(outline.nodes))
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
        barriers=find_barriers(split_items(graph, outline, spans, whole), begins),
        levels=count_levels(graph, outline),
        inner_barriers=sum(
            [draft.support.inner_barriers(graph.nodes[n], here, n in kept) for n in outline.nodes]
        ),
        observed=outline.observed,
        in_place=outline.in_place,
        aside=outline.aside,
        orders=orders.of(number, outline),
        hands_over=outline.hands_over,
        refills=outline.refills,
    )
