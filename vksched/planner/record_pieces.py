"""Record pieces: the splits and the memory of the pieces of a dynamic plan on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

from ..common.dtypes import WORD_BYTES
from ..plan.costs.op_support import OpSupport
from ..plan.dynamic.options import DeviceRecordings, Piece
from ..plan.types.offsets import aligned, assign_spans
from ..plan.types.plan_types import (
    HOST,
    DeviceMemory,
    Download,
    Placement,
    PlanValue,
    Span,
    Split,
    Upload,
)
from ..plan.types.split_draft import SplitDraft, critical_path_length
from .memory.allocate import SLACK, MemoryUse
from .memory.draft import NOWHERE
from .memory.staging import assign_staging
from .partition.barriers import find_barriers, split_items


def record(
    support: OpSupport, pieces: Sequence[Piece], held: Sequence[int], device: int
) -> DeviceRecordings:
    """Return the recordings of a device with their memory. held: the pieces to record, in order."""
    graph, topology = support.graph, support.topology
    spec = topology.devices[device]
    own = [pieces[number] for number in held]
    results = [value for piece in own for value in piece.gives]
    read = sorted({value for piece in own for value in piece.reads})
    memory, places = _memory(support, own, read, results, device)
    splits: list[Split] = []
    entries: dict[int, int] = {}
    upload_staging, spans = places.upload_staging, places.spans
    copies = {
        v: Upload(v, HOST, upload_staging.get(v, NOWHERE), spans.get(v, NOWHERE)) for v in read
    }
    if spec.kind != "cpu":
        for value, copy in copies.items():
            entries[value] = len(splits)
            splits.append(Split(len(splits), device, (), (copy,), (), (), (), 1))
    at: dict[int, int] = {}
    for number, piece in zip(held, own, strict=True):
        at[number] = len(splits)
        splits.append(piece_split(support, piece, device, places, len(splits)))
    devices = len(topology.devices)
    none = DeviceMemory((), 0, (), (), (), 0)
    plan = PlanValue(
        graph=graph,
        topology=topology,
        policy="earliest-finish",
        copies=1,
        placements=(Placement(device, ""),) * len(graph.nodes),
        splits=tuple(splits),
        final_waits=(),
        memory=tuple(memory if d == device else none for d in range(devices)),
        locations=MappingProxyType({(device, v): span for v, span in places.spans.items()}),
        any_order=True,
    )
    return DeviceRecordings(plan, copies, entries, at)


class _Places:
    """The memory of values on one device."""

    def __init__(
        self,
        spans: Mapping[int, Span],
        upload_staging: Mapping[int, Span],
        download_staging: Mapping[int, Span],
        whole: bool,
    ) -> None:
        self.spans = spans
        self.upload_staging = upload_staging
        self.download_staging = download_staging
        self.whole = whole


def piece_split(
    support: OpSupport, piece: Piece, device: int, places: _Places, number: int
) -> Split:
    """Return the split of a piece on a device, without uploads."""
    graph = support.graph
    split_draft = SplitDraft(device, piece.nodes, (), piece.gives, ())
    nodes = graph.nodes
    return Split(
        id=number,
        device=device,
        nodes=piece.nodes,
        uploads=(),
        downloads=tuple(Download(v, places.download_staging.get(v, NOWHERE)) for v in piece.gives),
        waits=(),
        barriers=find_barriers(split_items(graph, split_draft, places.spans, places.whole)),
        depth=critical_path_length(graph, split_draft),
        inner_barriers=sum([support.inner_barriers(nodes[n], device) for n in piece.nodes]),
    )


def _memory(
    support: OpSupport,
    own: Sequence[Piece],
    read: Sequence[int],
    results: Sequence[int],
    device: int,
) -> tuple[DeviceMemory, _Places]:
    """Return the memory that pieces need on a device, and the places of their values."""
    graph, spec = support.graph, support.topology.devices[device]
    between = dict.fromkeys((*read, *results))
    roots, nodes = graph.view_bases, graph.nodes
    leaves = {roots[i] for piece in own for n in piece.nodes for i in nodes[n].inputs}
    weights = tuple(sorted(leaves & graph.data.keys()))
    inside = [
        MemoryUse(support, [SplitDraft(device, piece.nodes, (), (), ())], device) for piece in own
    ]
    if spec.kind == "cpu":
        weight_bytes = sum(nodes[w].type.host_bytes for w in weights)
        live = WORD_BYTES * max((use.least for use in inside), default=0)
        peak = live + sum(nodes[v].type.host_bytes for v in between)
        memory = DeviceMemory(weights, weight_bytes, (), (), (), peak)
        return memory, _Places({}, {}, {}, False)
    page_words, whole = spec.max_buffer_bytes // WORD_BYTES, spec.disable_aliasing
    lasting = [(v, graph.words[v]) for v in between]
    spans, pages = assign_staging(lasting, page_words, whole)
    inner: list[int] = []
    for use in inside:
        lives = [life for life in use.lifetimes(SLACK) if life.value not in between]
        found, sizes = assign_spans(lives, page_words, whole)
        for value, span in found.items():
            spans[value] = span._replace(page=span.page + len(pages))
        inner = [max(pair) for pair in zip_longest(inner, sizes, fillvalue=0)]
    upload_staging, upload_pages = assign_staging(
        [(v, graph.words[v]) for v in read], page_words, whole
    )
    download_staging, download_pages = assign_staging(
        [(v, graph.words[v]) for v in results], page_words, whole
    )
    bytes_of = {w: aligned(graph.words[w]) * WORD_BYTES for w in weights}
    weight_bytes = sum(bytes_of.values())
    all_pages = (*pages, *inner)
    words = sum(all_pages) + (
        0 if not spec.unified_memory else sum(upload_pages) + sum(download_pages)
    )
    there = sum(bytes_of[w] for w in support.resident.get(device, ()) if w in bytes_of)
    memory = DeviceMemory(
        weights,
        weight_bytes,
        all_pages,
        upload_pages,
        download_pages,
        weight_bytes + WORD_BYTES * words,
        there,
    )
    return memory, _Places(spans, upload_staging, download_staging, whole)
