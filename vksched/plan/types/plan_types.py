"""The values that a plan is made of, frozen and printable: what devices carry out to the letter.

    split 0  vulkan:0   copy in x; nodes ...; copy out h      (one recording, one submit, one fence)
                |  host waits for 0, copies h from download buffer of vulkan:0 to upload buffer of
                vulkan:1
    split 1  vulkan:1   copy in h; nodes ...; copy out y
                |  host waits for 1, gives y to the caller

Memory of a device: weight pages (shared by all plans), and for each of `copies` slots activation
pages, upload buffer pages that the host writes and download buffer pages that it reads. `Plan` in
plan.py adds what people ask of a plan: explain, draw, verify. Examples: tests/plan/test_plan.py.
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


@dataclass(frozen=True, slots=True)
class Span:
    """A range of 32-bit words in one page."""

    page: int
    offset: int
    words: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of a node and the rule that chose it, in words."""

    device: int
    reason: str


@dataclass(frozen=True, slots=True)
class Upload:
    """A value that enters a device: host memory -> upload buffer -> activation memory.

    node: the value. source: the split whose download buffer (or CPU result) holds it, or HOST for
    an input. staging, target: spans on the consuming device; unused (zero words) when that device
    is the CPU.
    """

    node: int
    source: int
    staging: Span
    target: Span


@dataclass(frozen=True, slots=True)
class Download:
    """A value that leaves a device: activation memory -> download buffer, where the host reads
    it.
    """

    node: int
    staging: Span


UPLOAD, COMPUTE, DOWNLOAD = "upload", "compute", "download"
"""The stages of a split. The copies are a part of the work, or submissions of their own to the
device's copy queue.
"""


class StageDependency(NamedTuple):
    """A stage of a split starts when another stage is complete, of this split or an earlier one of
    the same device. Submissions learn that by a semaphore, but for copies out that no later split
    hands over: these are submitted when the host has seen the fence of the work.
    """

    stage: str
    after: str
    split: int


@dataclass(frozen=True, slots=True)
class Split:
    """A run of nodes on one device, submitted as one.

    nodes: in execution order; views are not among them, they are resolved to what they view.
    waits: splits for which the host waits before it copies in and submits this one: the transfers,
        less those already waited for or implied by an earlier wait on the same device.
    barriers: positions in (uploads + nodes + downloads) before which a barrier is recorded.
    depth: the length of the longest chain of these items in which each needs the one before: no
        order needs fewer barriers. inner_barriers: those inside nodes of several dispatches.
    observed: values that the user sees once this split is complete; the next one waits for that.
    in_place: (value, state) for each value that is written into the memory of the state that it is
        the next value of; nothing is left to do for the state's own `assign`.
    async_transfers: the stages that the copy queue of the device carries out, beside its work:
    UPLOAD and
        DOWNLOAD, one of them or none. All copies in, or out, of a split go the same way.
    stage_deps: what these stages, and the work, wait for beside the order of their own queue.
    deferred_downloads: earlier splits whose copies out are submitted behind this one; all others
    are when
        the host waits for their split.
    refills: the host writes the weights that are copied in from its memory in each run, once it has
        waited: their staging buffers held others before. Else they are there before the first run.
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
        """Return the stages, with their splits, for which a stage of this split waits."""
        return tuple((o.after, o.split) for o in self.stage_deps if o.stage == stage)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What a plan takes on one device, all sizes in 32-bit words but where the name says bytes.

    weights: leaf nodes (weights and constants) that must be there. activation_pages, upload_pages,
    download_pages: page sizes of one slot. peak_bytes: weights, states and all slots together, less
    staging buffers that lie apart (see DeviceSpec); of the CPU its activations, states and such
    staging buffers, as its weights are the caller's arrays. resident_bytes: of the weights and
    states, what was on the device already when the plan was made. states: those that live there, in
    memory that no slot has for its own; as a page, a state's number is that of the activation pages
    and its position here.
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
        """The pages that the host can see, upload buffer and download buffer."""
        return (*self.upload_pages, *self.download_pages)

    @property
    def needed_bytes(self) -> int:
        """What is still to be allocated."""
        return self.peak_bytes - self.resident_bytes


@dataclass(frozen=True, eq=False)
class PlanValue:
    """placements: one per node of the graph. splits: in the order in which the host submits them.

    locations: (device, node) -> activation span, for each value that is in that device's memory,
    the results of its own nodes and copies of others; not for leaves that are weights, nor for
    views (but see Upload: a part of a tensor that crosses on its own is a value of its own there).
    A state, what writes it and a value that is written in its place have the same. Under (device,
    scratch_of(node)) the scratch memory of a node, alive while it runs.
    final_waits: splits for which the host waits before it hands the outputs to the caller.
    decision: what the plan was chosen from, by cost; None where nothing was weighed.
    any_order: the splits are what one device has recorded; a run submits some of them, in any
        order.
    replicas: other plans of the same graph, each on a device of its own: of a stream each run goes
        whole to this plan or to one of them.
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
        """The devices that have work, also of replicas."""
        every = (self, *self.replicas)
        return tuple(sorted({split.device for plan in every for split in plan.splits}))

    @property
    def barriers(self) -> int:
        """The barriers between nodes of all splits."""
        return sum(len(split.barriers) for split in self.splits)

    @property
    def depth(self) -> int:
        """The dependent levels of all splits on devices that have barriers."""
        return sum(s.depth for s in self.splits if not self.topology.is_cpu(s.device))

    @property
    def inner_barriers(self) -> int:
        """The barriers inside nodes of several dispatches."""
        return sum(split.inner_barriers for split in self.splits)

    @cached_property
    def commits(self) -> tuple[Split, ...]:
        """The splits that write states, which stand last."""
        return tuple(s for s in self.splits if commits(self.graph, s.nodes, s.in_place))

    @cached_property
    def in_place(self) -> Mapping[int, int]:
        """For each value that is written into a state's memory as its next value, the state."""
        return {value: state for split in self.splits for value, state in split.in_place}

    @cached_property
    def written(self) -> tuple[tuple[int, int, int], ...]:
        """The states that a run writes: each with its next value and the device where it lives."""
        assigned = (node.inputs for node in self.graph.nodes if node.op == "assign")
        return tuple((held, value, self.placements[held].device) for held, value in assigned)

    def state_at(self, device: int, span: Span) -> int | None:
        """Return the state in whose memory a span lies; None where it is activation memory."""
        number = span.page - len(self.memory[device].activation_pages)
        return None if number < 0 else self.memory[device].states[number]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all nodes, by node id."""
        return tuple(node.name for node in self.graph.nodes)


def stage_begins(async_transfers: Collection[str], uploads: int, nodes: int) -> tuple[int, ...]:
    """Return the positions of the items of a split that begin another submission. uploads,
    nodes: how many it has.
    """
    positions = {UPLOAD: uploads, DOWNLOAD: uploads + nodes}
    return tuple(at for stage, at in positions.items() if stage in async_transfers)


def scratch_of(node_id: int) -> int:
    """Return the number that stands for a node's scratch memory; its own inverse."""
    return -1 - node_id


def commits(graph: Graph, nodes: Iterable[int], in_place: Collection[tuple[int, int]]) -> bool:
    """Whether a split gives states their next values."""
    return bool(in_place) or any(graph.nodes[n].op == "assign" for n in nodes)


def may_lie_over(graph: Graph, value: int, state: int) -> bool:
    """Whether a node may write its result where a state lies that it reads, or does not."""
    node = graph.nodes[value]
    how = node.declaration.in_place
    if how is None or graph.words[value] != graph.words[state]:
        return False
    read = [i for i, operand in enumerate(node.inputs) if graph.view_base(operand) == state]
    if how.kept is not None and read != [how.kept]:
        return False
    return all(
        graph.nodes[i].type == node.type and graph.views.get(i, (state, 0))[1] == 0
        for i in (node.inputs[position] for position in read)
    )


def numpy_may_write(graph: Graph, value: int, state: int, readers: Iterable[int]) -> bool:
    """Whether numpy may change a state's array into its next value: that cannot fail, and nothing
    that lives longer is a view of the array.

    readers: the nodes that read the state. Only CPU kernels write what they make elsewhere.
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
    """Return which value an operand stands for: itself, or for a view what it views.

    A part of a computed tensor crosses on its own; everything else stands for its root.
    """
    root = graph.view_bases[operand]
    whole = root == operand or graph.words[root] == graph.words[operand]
    if same_device or whole or graph.nodes[root].declaration.leaf:
        return root
    return operand
