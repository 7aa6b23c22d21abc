"""Plan draft: the splits and memory of a placement, before it is known whether they fit.

    placement -> splits -> place of each value -> bytes of each device, for one copy
                                                          | fits, and number of copies
                                                          v
                                                        a Plan

Complexity: that of splits.py, allocate.py and barriers.py. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...plan.costs.op_support import OpSupport
from ...plan.plan import Plan
from ...plan.types.decision import Decision
from ...plan.types.offsets import aligned
from ...plan.types.plan_types import (
    DeviceMemory,
    Download,
    Placement,
    Span,
    Split,
    Upload,
    stage_begins,
)
from ...plan.types.split_draft import SplitDraft, critical_path_length
from ...topology.topology import Topology
from ..partition.barriers import find_barriers, split_items
from ..partition.splits import split_graph
from ..partition.stage_deps import StageDependencies
from ..partition.streaming_windows import StreamingBuffers
from .allocate import MemoryUse, assign_memory, states_of, weights_of
from .staging import assign_staging, assign_upload_staging

NOWHERE = Span(0, 0, 0)
"""The span of a value in memory of the CPU."""


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A placement with its splits and its memory, for one copy.

    `spans`, `upload_staging` and `download_staging` hold, by device, the places of values in
    activation memory and staging buffers; `memory` the needs of one copy; `host_slot_bytes` the
    bytes of one copy in the memory of each CPU, including the staging buffers of devices in that
    memory.
    """

    support: OpSupport
    placements: tuple[Placement, ...]
    notes: tuple[str, ...]
    split_drafts: tuple[SplitDraft, ...]
    final_waits: tuple[int, ...]
    spans: tuple[Mapping[int, Span], ...]
    upload_staging: tuple[Mapping[int, Span], ...]
    download_staging: tuple[Mapping[int, Span], ...]
    memory: tuple[DeviceMemory, ...]
    host_slot_bytes: Mapping[int, int]

    @property
    def topology(self) -> Topology:
        return self.support.topology

    def need(self, peers: Sequence[int]) -> int:
        """Return the bytes that devices of one memory still have to allocate."""
        return sum(self.memory[d].needed_bytes for d in peers)

    def free_bytes(self, peers: Sequence[int]) -> int:
        """Return the bytes of a memory: the smallest size that its users report."""
        used = [d for d in peers if self.memory[d].needed_bytes] or peers
        return min(self.topology.devices[d].memory_bytes for d in used)

    def fits(self, peers: Sequence[int]) -> bool:
        return self.need(peers) <= self.free_bytes(peers)

    def slot_bytes(self, device: int) -> int:
        """Return the bytes of one copy in a device's own memory."""
        memory = self.memory[device]
        if device in self.host_slot_bytes:
            return self.host_slot_bytes[device]
        staging = () if not self.topology.devices[device].unified_memory else memory.staging_pages
        return 4 * (sum(memory.activation_pages) + sum(staging))


def make_draft(
    support: OpSupport,
    placements: tuple[Placement, ...],
    notes: tuple[str, ...],
    tight: bool = False,
    ahead: bool = True,
    scarce: bool = False,
) -> PlanDraft:
    """Return the draft of a placement.

    notes: messages to the user. tight: save memory at the price of barriers. ahead, scarce: see
    `StreamingBuffers.of`.
    """
    graph, topology = support.graph, support.topology
    streaming_buffers = StreamingBuffers.of(topology, ahead, scarce)
    split_drafts, final_waits = split_graph(support, placements, streaming_buffers)
    spans: list[dict[int, Span]] = [{} for _ in topology.devices]
    upload_staging: list[dict[int, Span]] = [{} for _ in topology.devices]
    download_staging: list[dict[int, Span]] = [{} for _ in topology.devices]
    memory: list[DeviceMemory] = []
    own: dict[int, list[SplitDraft]] = {}
    for split_draft in split_drafts:
        own.setdefault(split_draft.device, []).append(split_draft)
    staging_in: dict[str, int] = {}
    host_slot_bytes: dict[int, int] = {}
    for device, spec in enumerate(topology.devices):
        here = own.get(device, [])
        weights = weights_of(graph, here)
        states = states_of(graph, here)
        program = MemoryUse(support, here, device)
        if spec.kind == "cpu":
            there = staging_in.get(topology.host_of(device), 0)
            slot_bytes = host_slot_bytes[device] = 4 * program.least + there
            memory.append(_host_memory(support, device, weights, states, slot_bytes))
            continue
        bytes_of = {w: aligned(graph.words[w]) * 4 for w in (*weights, *states)}
        page_words, whole = spec.max_buffer_bytes // 4, spec.disable_aliasing
        spans[device], pages = assign_memory(program, page_words, whole, tight)
        page_of = {state: len(pages) + number for number, state in enumerate(states)}
        in_place = [pair for split_draft in here for pair in split_draft.in_place]
        for node_id, state in (*graph.states.items(), *in_place) if states else ():
            if state in page_of:
                spans[device][node_id] = Span(page_of[state], 0, graph.words[state])
        live_out = [(v, graph.words[v]) for o in here for v in o.live_out]
        upload_staging[device], upload_pages = assign_upload_staging(
            graph, here, streaming_buffers.sets, page_words, whole
        )
        download_staging[device], download_pages = assign_staging(live_out, page_words, whole)
        staging_bytes = 4 * (sum(upload_pages) + sum(download_pages))
        if not spec.unified_memory:
            host = topology.host_of(device)
            staging_in[host] = staging_in.get(host, 0) + staging_bytes
        weight_bytes = sum(bytes_of[w] for w in weights)
        state_bytes = sum(bytes_of[s] for s in states)
        own_staging = 0 if not spec.unified_memory else staging_bytes
        peak = weight_bytes + state_bytes + 4 * sum(pages) + own_staging
        there = sum(bytes_of[w] for w in support.resident.get(device, ()) if w in bytes_of)
        slot = pages, upload_pages, download_pages
        memory.append(DeviceMemory(weights, weight_bytes, *slot, peak, there, states, state_bytes))
    return PlanDraft(
        support,
        placements,
        notes,
        split_drafts,
        final_waits,
        tuple(spans),
        tuple(upload_staging),
        tuple(download_staging),
        tuple(memory),
        host_slot_bytes,
    )


def _host_memory(
    support: OpSupport, device: int, weights: tuple[int, ...], states: tuple[int, ...], slot: int
) -> DeviceMemory:
    """Return the memory that a CPU needs on its host. slot: bytes of one copy.

    Weights on the driver are the user's arrays; other hosts hold copies of them.
    """
    size = {node: support.graph.nodes[node].type.host_bytes for node in (*weights, *states)}
    weight_bytes, state_bytes = (sum(size[node] for node in some) for some in (weights, states))
    peak, there = slot + state_bytes, 0
    if device != support.topology.cpu:
        peak += weight_bytes
        there = sum(size[node] for node in support.resident.get(device, ()) if node in size)
    return DeviceMemory(weights, weight_bytes, (), (), (), peak, there, states, state_bytes)


def memory_of(draft: PlanDraft, copies: int) -> tuple[DeviceMemory, ...]:
    """Return the memory that a draft needs on each device for a number of copies."""
    more = map(draft.slot_bytes, range(len(draft.memory)))
    return tuple(
        replace(m, peak_bytes=m.peak_bytes + (copies - 1) * slot)
        for m, slot in zip(draft.memory, more, strict=True)
    )


def finish(
    draft: PlanDraft,
    policy: str,
    copies: int,
    notes: tuple[str, ...],
    decision: Decision | None = None,
) -> Plan:
    """Return the plan of a draft for a number of copies. decision: how it was chosen."""
    locations = {(d, v): span for d, own in enumerate(draft.spans) for v, span in own.items()}
    graph = draft.support.graph
    stage_deps = StageDependencies(graph, draft.topology, draft.spans)
    return Plan(
        graph=graph,
        topology=draft.topology,
        policy=policy,
        copies=copies,
        placements=draft.placements,
        splits=tuple(
            _make_split(draft, i, o, stage_deps) for i, o in enumerate(draft.split_drafts)
        ),
        final_waits=draft.final_waits,
        memory=memory_of(draft, copies),
        locations=MappingProxyType(locations),
        notes=notes,
        decision=decision,
    )


def _make_split(
    draft: PlanDraft, number: int, split_draft: SplitDraft, stage_deps: StageDependencies
) -> Split:
    here, graph = split_draft.device, draft.support.graph
    spans, upload_staging, download_staging = (
        draft.spans[here],
        draft.upload_staging[here],
        draft.download_staging[here],
    )
    whole = draft.support.topology.devices[here].disable_aliasing
    in_place_nodes = {value for value, _ in split_draft.in_place}
    begins = stage_begins(
        split_draft.async_transfers, len(split_draft.live_in), len(split_draft.nodes)
    )
    return Split(
        id=number,
        device=here,
        nodes=split_draft.nodes,
        uploads=tuple(
            Upload(v, source, upload_staging.get(v, NOWHERE), spans.get(v, NOWHERE))
            for v, source in split_draft.live_in
        ),
        downloads=tuple(
            Download(v, download_staging.get(v, NOWHERE)) for v in split_draft.live_out
        ),
        waits=split_draft.waits,
        barriers=find_barriers(split_items(graph, split_draft, spans, whole), begins),
        depth=critical_path_length(graph, split_draft),
        inner_barriers=sum(
            [
                draft.support.inner_barriers(graph.nodes[n], here, n in in_place_nodes)
                for n in split_draft.nodes
            ]
        ),
        observed=split_draft.observed,
        in_place=split_draft.in_place,
        async_transfers=split_draft.async_transfers,
        stage_deps=stage_deps.of(number, split_draft),
        deferred_downloads=split_draft.deferred_downloads,
        refills=split_draft.refills,
    )
