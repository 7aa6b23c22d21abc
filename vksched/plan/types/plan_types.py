"""The values of a plan, frozen and printable, which devices follow exactly.

    split 0  vulkan:0   copy in x; nodes ...; copy out h      (one recording, one submit, one fence)
                |  host waits for 0, copies h from download buffer of vulkan:0 to upload buffer of
                vulkan:1
    split 1  vulkan:1   copy in h; nodes ...; copy out y
                |  host waits for 1, gives y to the caller

Memory of a device: weight pages (shared by all plans), and for each of `copies` slots activation
pages, upload buffer pages that the host writes and download buffer pages that it reads. `Plan` in
plan.py adds the queries on a plan: explain, draw, verify. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...ir.graph import Graph
from ...topology.topology import Topology
from .decision import Decision

HOST = -1
"""Source of a copy that comes from the caller, not from a split."""


class Span(NamedTuple):
    """A range of 32-bit words in one page."""

    page: int
    offset: int
    words: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of a node, and the rule of its placement as text."""

    device: int
    reason: str


class Upload(NamedTuple):
    """A value that enters a device: host memory -> upload buffer -> activation memory.

    node: the value. source: the split whose download buffer (or CPU result) holds it, or HOST for
    an input. staging, target: spans on the consuming device; unused (zero words) if that device is
    the CPU.
    """

    node: int
    source: int
    staging: Span
    target: Span


class Download(NamedTuple):
    """A value that leaves a device: activation memory -> download buffer, from which the host reads
    it.
    """

    node: int
    staging: Span


UPLOAD, COMPUTE, DOWNLOAD = "upload", "compute", "download"
"""The stages of a split. The copies are a part of its work, or separate submissions to the copy
queue of the device.
"""


class StageDependency(NamedTuple):
    """A dependency of a stage of a split on another stage, of this split or an earlier one on the
    same device. It is enforced by a semaphore, except for downloads that no later split submits:
    these are submitted after the host has seen the fence of the work.
    """

    stage: str
    after: str
    split: int


@dataclass(frozen=True, slots=True)
class Split:
    """A sequence of nodes on one device, submitted as one.

    nodes: in execution order, without views, which are resolved to their bases.
    waits: splits that the host waits for before it copies in and submits this one: the transfers,
        without the ones already awaited, or implied by an earlier wait on the same device.
    barriers: positions in (uploads + nodes + downloads) before which a barrier is recorded.
    depth: the length of the longest dependency chain of these items, a lower bound on the number of
        barriers under any order. inner_barriers: the barriers inside nodes of several dispatches.
    observed: values that the user sees after this split; the next split waits for that.
    in_place: (value, state) pairs in which the value overwrites the state whose next value it is;
        the state's own `assign` is then empty.
    async_transfers: the stages that run on the copy queue of the device, concurrently with its
        work: UPLOAD, DOWNLOAD, both or none. All uploads, or downloads, of a split use one queue.
    stage_deps: the dependencies of these stages, and of the work, beyond the order of their queue.
    deferred_downloads: earlier splits whose downloads are submitted after this split. Other
        downloads are submitted when the host waits for their split.
    refills: True if the host writes the streamed weights of each run after its waits, because other
        weights used their staging buffers before. Otherwise the host writes them once, before the
        first run.
    """

    id: int
    device: int
    nodes: tuple[int, ...]
    uploads: tuple[Upload, ...]
    downloads: tuple[Download, ...]
    waits: tuple[int, ...]
    barriers: tuple[int, ...]
    depth: int = 0
    inner_barriers: int = 0
    observed: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    async_transfers: tuple[str, ...] = ()
    stage_deps: tuple[StageDependency, ...] = ()
    deferred_downloads: tuple[int, ...] = ()
    refills: bool = False

    @property
    def stages(self) -> dict[str, range]:
        """The positions of the items of each submission, in (uploads + nodes + downloads)."""
        end = len(self.uploads) + len(self.nodes) + len(self.downloads)
        comes = len(self.uploads) if UPLOAD in self.async_transfers else 0
        leaves = end - len(self.downloads) if DOWNLOAD in self.async_transfers else end
        parts = {UPLOAD: range(comes), COMPUTE: range(comes, leaves), DOWNLOAD: range(leaves, end)}
        return {s: part for s, part in parts.items() if s == COMPUTE or s in self.async_transfers}

    @property
    def begins(self) -> tuple[int, ...]:
        """The positions of the items that begin another submission, in (uploads + nodes +
        downloads).
        """
        return stage_begins(self.async_transfers, len(self.uploads), len(self.nodes))

    def after(self, stage: str) -> tuple[tuple[str, int], ...]:
        """Return the stages, with their splits, that a stage of this split waits for."""
        return tuple((o.after, o.split) for o in self.stage_deps if o.stage == stage)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a plan on one device. Sizes are 32-bit words, except for names with bytes.

    weights: leaf nodes (weights and constants) that must be resident. activation_pages,
    upload_pages, download_pages: page sizes of one slot. peak_bytes: weights, states and all slots
    together, without staging buffers in separate memory (see DeviceSpec); on the CPU its
    activations, states and these staging buffers, because its weights are the caller's arrays.
    resident_bytes: bytes of the weights and states that were on the device before planning. states:
    the states of this device, in memory shared by all slots; the page number of a state is the
    number of activation pages plus its position here.
    """

    weights: tuple[int, ...]
    weight_bytes: int
    activation_pages: tuple[int, ...]
    upload_pages: tuple[int, ...]
    download_pages: tuple[int, ...]
    peak_bytes: int
    resident_bytes: int = 0
    states: tuple[int, ...] = ()
    state_bytes: int = 0

    @property
    def staging_pages(self) -> tuple[int, ...]:
        """The pages that the host can see: upload and download buffers."""
        return (*self.upload_pages, *self.download_pages)

    @property
    def needed_bytes(self) -> int:
        """The bytes still to be allocated."""
        return self.peak_bytes - self.resident_bytes


@dataclass(frozen=True, eq=False)
class PlanValue:
    """The frozen fields of a plan.

    placements: one per node of the graph. splits: in the order in which the host submits them.
    locations: (device, node) -> activation span, for each value in the memory of that device: the
        results of its own nodes and copies of others, without leaves that are weights and without
        views (but see Upload: a part of a tensor that is transferred alone is a separate value
        there). A state, its writer and a value in its place share a span. Under (device,
        scratch_of(node)): the scratch memory of a node, alive while it runs.
    final_waits: splits that the host waits for before it returns the outputs to the caller.
    decision: the choice among candidates by cost, or None without costs.
    any_order: True if the splits are the recordings of one device, of which a run submits some
        in any order.
    replicas: other plans of the graph, each on a device of its own: each run of a stream uses this
        plan or one of them.
    """

    graph: Graph
    topology: Topology
    policy: str
    copies: int
    placements: tuple[Placement, ...]
    splits: tuple[Split, ...]
    final_waits: tuple[int, ...]
    memory: tuple[DeviceMemory, ...]
    locations: Mapping[tuple[int, int], Span]
    notes: tuple[str, ...] = ()
    decision: Decision | None = None
    any_order: bool = False
    replicas: tuple[PlanValue, ...] = ()

    @cached_property
    def working(self) -> tuple[int, ...]:
        """The devices with work, replicas included."""
        every = (self, *self.replicas)
        return tuple(sorted({split.device for plan in every for split in plan.splits}))

    @property
    def barriers(self) -> int:
        """The barriers between nodes of all splits."""
        return sum(len(split.barriers) for split in self.splits)

    @property
    def depth(self) -> int:
        """The dependent levels of all splits on devices with barriers."""
        return sum(s.depth for s in self.splits if not self.topology.is_cpu(s.device))

    @property
    def inner_barriers(self) -> int:
        """The barriers inside nodes of several dispatches."""
        return sum(split.inner_barriers for split in self.splits)

    @cached_property
    def commits(self) -> tuple[Split, ...]:
        """The splits that write states, which are last."""
        return tuple(s for s in self.splits if commits(self.graph, s.nodes, s.in_place))

    @cached_property
    def commits_early(self) -> bool:
        """True if states are written before the host has seen that the splits before are complete;
        see `early_commits.py`.
        """
        before = self.splits[: len(self.splits) - len(self.commits)]
        return bool(before and self.commits) and not self.commits[0].waits

    @cached_property
    def in_place(self) -> Mapping[int, int]:
        """For each value that overwrites a state with its next value, the state."""
        return {value: state for split in self.splits for value, state in split.in_place}

    @cached_property
    def written(self) -> tuple[tuple[int, int, int], ...]:
        """The states that a run writes, each with its next value and its device."""
        assigned = (node.inputs for node in self.graph.nodes if node.op == "assign")
        return tuple((held, value, self.placements[held].device) for held, value in assigned)

    def state_at(self, device: int, span: Span) -> int | None:
        """Return the state whose memory contains a span, or None for activation memory."""
        number = span.page - len(self.memory[device].activation_pages)
        return None if number < 0 else self.memory[device].states[number]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all nodes, by node id."""
        return tuple(node.name for node in self.graph.nodes)


def stage_begins(async_transfers: Collection[str], uploads: int, nodes: int) -> tuple[int, ...]:
    """Return the positions of the items of a split that begin another submission.

    uploads, nodes: the number of uploads and of nodes.
    """
    positions = {UPLOAD: uploads, DOWNLOAD: uploads + nodes}
    return tuple(at for stage, at in positions.items() if stage in async_transfers)


def scratch_of(node_id: int) -> int:
    """Return the number of a node's scratch memory. The function is its own inverse."""
    return -1 - node_id


def commits(graph: Graph, nodes: Iterable[int], in_place: Collection[tuple[int, int]]) -> bool:
    """Return True if a split writes the next values of states."""
    return bool(in_place) or any(graph.nodes[n].op == "assign" for n in nodes)


def may_lie_over(graph: Graph, value: int, state: int) -> bool:
    """Return True if a node may overwrite a state, whether or not it reads that state."""
    node = graph.nodes[value]
    how = node.declaration.in_place
    if how is None or graph.words[value] != graph.words[state]:
        return False
    read = [i for i, operand in enumerate(node.inputs) if graph.view_base(operand) == state]
    if how.updated_operand is not None and read != [how.updated_operand]:
        return False
    return all(
        graph.nodes[i].type == node.type and graph.views.get(i, (state, 0))[1] == 0
        for i in (node.inputs[position] for position in read)
    )


def numpy_may_write(graph: Graph, value: int, state: int, readers: Iterable[int]) -> bool:
    """Return True if numpy may update a state's array in place: the node cannot fail, and no view
    of the array outlives it.

    readers: the nodes that read the state. All must have CPU kernels, whose results are no views.
    """
    how = graph.nodes[value].declaration.in_place
    return (
        how is not None
        and how.write is not None
        and all(
            reader == value
            or reader in graph.states
            or graph.nodes[reader].declaration.cpu is not None
            for reader in readers
        )
    )


def value_of(graph: Graph, operand: int, same_device: bool) -> int:
    """Return the value that an operand stands for: itself, or the base of a view.

    A part of a computed tensor is transferred alone; any other view stands for its base.
    """
    root = graph.view_bases[operand]
    whole = root == operand or graph.words[root] == graph.words[operand]
    if same_device or whole or graph.nodes[root].declaration.leaf:
        return root
    return operand
