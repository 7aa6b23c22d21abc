"""Options of dynamic scheduling: the pieces of a graph, and the pieces each device records.

Problem: it is not known in advance which device runs which piece, nor in which order. Method:
pieces are node groups, as in cost-based plans. Consecutive groups that nothing could run
concurrently with are merged: splitting a chain costs a submission and gains nothing. Values passed
between pieces have their own memory during the whole run. Values within a piece share memory with
those within all other pieces, because a queue runs pieces one after the other. If a device has no
memory for all pieces, the pieces are smaller, and it first records those that no other device has,
so that all devices together record as many as possible.

    pages of a device   | h0 | h1 | h2 | y |   inside of any piece   |
    staging buffers             | x in | h0 in | ...    h0 out | y out | ...

Complexity: that of node groups and memory, times the logarithm of the pieces for a device that is
too small. Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..common.dtypes import WORD_BYTES
from ..common.errors import OutOfMemory, PlanError
from ..common.formatting import count_of
from ..ir.graph import Node
from ..plan.costs import node_cost
from ..plan.costs.op_support import OpSupport
from ..plan.dynamic.options import DeviceRecordings, Options, Piece
from ..plan.simulation.simulate_plan import overhead_seconds
from ..plan.types.placement_overrides import Overrides, resolve_overrides
from ..plan.types.split_draft import SUBMISSION_S
from .placement.node_groups import NodeGroup, find_node_groups
from .record_pieces import record

PIECES_PER_DEVICE = 2
"""Target number of pieces of equal size per device."""
FINE_PIECES = 14
"""Target number of pieces for all devices together if some device cannot hold all."""
MIN_SUBMISSIONS = 8.0
"""Minimum duration of a piece as a multiple of a submission, if the graph is large enough."""


def make_options(support: OpSupport, overrides: Overrides, with_cpu: bool) -> Options:
    """Return the options of dynamic scheduling for a graph.

    with_cpu: the CPU may run all nodes that it supports; else only nodes that no other device
    supports.

    Raises
    ------
    PlanError
        The graph has states or observed values, which require a static plan.
    """
    graph = support.graph
    _require_plain(support)
    builder = _OptionsBuilder(support, overrides, with_cpu)
    pieces = builder.pieces
    makers = {value: number for number, piece in enumerate(pieces) for value in piece.gives}
    on: dict[int, DeviceRecordings] = {}
    for device in range(len(support.topology.devices)):
        held = [number for number, piece in enumerate(pieces) if device in piece.seconds]
        if held:
            on[device] = record(support, pieces, held, device)
    _check_host(support, on)
    return Options(graph, support.topology, pieces, makers, on, builder.rules, tuple(builder.notes))


def _check_host(support: OpSupport, on: Mapping[int, DeviceRecordings]) -> None:
    """Raise OutOfMemory if the host cannot hold memory of the CPU and staging buffers."""
    topology, need = support.topology, 0
    for device, recorded in on.items():
        memory = recorded.plan.memory[device]
        if device == topology.cpu:
            need += memory.peak_bytes
        elif (
            not topology.devices[device].unified_memory and topology.cpu_of(device) == topology.cpu
        ):
            need += WORD_BYTES * sum(memory.staging_pages)
    if need > topology.devices[topology.cpu].memory_bytes:
        raise OutOfMemory(
            f"[plan] expected at most {topology.devices[topology.cpu].memory_bytes} bytes of host "
            f"memory for the CPU and for staging buffers, got {need}; try smaller batches"
        )


def _require_plain(support: OpSupport) -> None:
    graph = support.graph
    if graph.states:
        name = graph.nodes[next(iter(graph.states))].name
        raise PlanError(
            f"[plan] expected a graph without states for a dynamic policy, got "
            f'{name!r}; try policy="auto"'
        )
    if support.observed:
        name = graph.nodes[support.observed[0]].name
        raise PlanError(
            f"[plan] expected no observers for a dynamic policy, got one of "
            f'{name!r}; try policy="auto"'
        )


class _OptionsBuilder:
    """Build the pieces of one graph, and choose the devices that record each."""

    def __init__(self, support: OpSupport, overrides: Overrides, with_cpu: bool) -> None:
        self.support = support
        self.topology = support.topology
        resolved = resolve_overrides(support.graph, self.topology, overrides)
        self._pins = {
            node: device
            for node, (device, _) in resolved.items()
            if support.graph.nodes[node].op
            not in ("input", "constant")  # these have no device of their own
        }
        self.rules = {node: text for node, (_, text) in resolved.items()}
        self.notes: list[str] = []
        gpus = [d for d, s in enumerate(self.topology.devices) if s.kind != "cpu"]
        usable = [d for d in gpus if not self.topology.devices[d].disabled_reason]
        self._cpus = tuple(d for d in self.topology.order if self.topology.is_cpu(d))
        self._devices = (*usable, *self._cpus) if with_cpu else tuple(usable)
        self._with_cpu = with_cpu
        self._known: dict[int, tuple[int, ...]] = {}
        coarse = self._node_groups(max(1, PIECES_PER_DEVICE * len(self._devices)))
        coarse = self._cut_long(_joined(_pieces_of(support, coarse), coarse))
        plain = _pieces_of(support, coarse)
        if not self._all_fit(plain):
            plain = _pieces_of(support, self._node_groups(FINE_PIECES))
        held = self._fit(plain)
        each = zip(plain, held, strict=True)
        self.pieces = _ranked([replace(p, seconds=self._seconds(p, on)) for p, on in each])
        self._note_weights()

    def _note_weights(self) -> None:
        """Add a note for each pinned weight that other devices hold, too, for the ops there."""
        graph = self.support.graph
        for weight in (n for n in self._pins if graph.nodes[n].op == "weight"):
            readers = set(self.support.readers[weight])
            having = {d for p in self.pieces if readers.intersection(p.nodes) for d in p.seconds}
            others = sorted(having - {self._pins[weight]})
            if others:
                also = ", ".join(self.topology.devices[d].name for d in others)
                name, rule = graph.nodes[weight].name, self.rules[weight]
                self.notes.append(f"{name}: {rule}; also on {also}, for the ops there")

    # -- pieces ------------------------------------------------------------------------------------

    def _candidate_devices(self, node_id: int) -> tuple[int, ...]:
        """Return the devices that may run a node; CPUs only if no other device can."""
        found = self._known.get(node_id)
        if found is None:
            node, supports = self.support.graph.nodes[node_id], self.support.supports
            pin = self._pin(node)
            if pin is not None and supports(node, pin):
                found = (pin,)
            else:
                found = tuple(d for d in self._devices if supports(node, d))
                found = found or tuple(d for d in self._cpus if supports(node, d))
                if pin is not None and node.id in self.rules:
                    reason = self.support.unsupported_reason(node, pin)
                    self.rules[node.id] += f", which cannot: {reason}"
                    self.notes.append(f"{node.name}: {self.rules[node.id]}")
            self._known[node_id] = found
        return found

    def _pin(self, node: Node) -> int | None:
        """Return the device of the user pin of a node, or of its heaviest pinned weight."""
        graph = self.support.graph
        if node.id in self._pins or not self._pins:
            return self._pins.get(node.id)
        placed = [w for w in dict.fromkeys(graph.transitive_leaves(node)) if w in self._pins]
        return self._pins[max(placed, key=lambda w: graph.words[w])] if placed else None

    def _node_groups(self, grains: int) -> list[NodeGroup]:
        support = self.support
        seconds = {
            n.id: min(support.node_seconds(n.id, d) for d in self._candidate_devices(n.id))
            for n in support.computed
        }
        submit_s = min(node_cost.submission_seconds(spec) for spec in self.topology.devices)
        grain_s = max(sum(seconds.values()) / grains, MIN_SUBMISSIONS * submit_s)
        found = find_node_groups(support, self._candidate_devices, seconds, grain_s)
        return self._cut_long(found)

    def _cut_long(self, node_groups: Iterable[NodeGroup]) -> list[NodeGroup]:
        return [part for node_group in node_groups for part in self._cut(node_group)]

    def _cut(self, node_group: NodeGroup) -> Iterable[NodeGroup]:
        """Split a node group that would be too long a submission on one of its devices."""
        nodes: list[int] = []
        total_s = 0.0
        for node_id in node_group.nodes:
            seconds = max(
                (
                    self.support.longest_seconds(node_id, d)
                    for d in node_group.candidate_devices
                    if not self.topology.is_cpu(d)
                ),
                default=0.0,
            )
            if nodes and total_s + seconds > SUBMISSION_S:
                yield NodeGroup(tuple(nodes), node_group.candidate_devices)
                nodes, total_s = [], 0.0
            nodes.append(node_id)
            total_s += seconds
        yield NodeGroup(tuple(nodes), node_group.candidate_devices)

    def _seconds(self, piece: Piece, on: Iterable[int]) -> dict[int, float]:
        support = self.support
        return {
            d: sum(support.node_seconds(n, d) for n in piece.nodes)
            + overhead_seconds(support.graph, self.topology, d, (), piece.gives)
            for d in on
        }

    # -- memory ------------------------------------------------------------------------------------

    def _all_fit(self, pieces: Sequence[Piece]) -> bool:
        """Return True if each device has memory for all pieces that it can run."""
        candidate_devices = [self._candidate_devices(piece.nodes[0]) for piece in pieces]
        wanted = {
            d: [n for n, on in enumerate(candidate_devices) if d in on]
            for d in range(self.topology.cpu)
        }
        return all(len(self._most(pieces, own, d)) == len(own) for d, own in wanted.items())

    def _fit(self, pieces: Sequence[Piece]) -> list[tuple[int, ...]]:
        """Return the devices that record each piece."""
        topology, count = self.topology, len(pieces)
        candidate_devices = [self._candidate_devices(piece.nodes[0]) for piece in pieces]
        covered: set[int] = set()
        on: list[list[int]] = [[] for _ in pieces]
        for device in range(topology.cpu):
            wanted = [number for number in range(count) if device in candidate_devices[number]]
            # first pieces that no other device can run, then those that no other device records yet
            wanted.sort(
                key=lambda number: (len(candidate_devices[number]) > 1, number in covered, number)
            )
            held = self._most(pieces, wanted, device)
            if len(held) < len(wanted):
                self.notes.append(
                    f"{topology.devices[device].name} has room for {len(held)} of "
                    f"{count_of(len(wanted), 'piece')} that it can run"
                )
            covered.update(held)
            for number in held:
                on[number].append(device)
        for number, devices in enumerate(on):
            if topology.cpu in candidate_devices[number] or not devices:
                devices.append(topology.cpu)
        self._note_moved(
            {n: on[number] for number, piece in enumerate(pieces) for n in piece.nodes}
        )
        return [tuple(devices) for devices in on]

    def _note_moved(self, on: Mapping[int, Sequence[int]]) -> None:
        """Add a note for each pinned node or weight whose device does not get it."""
        graph, moved = self.support.graph, dict[int, str]()
        read: dict[int, set[int]] = {}
        for node_id, devices in on.items():
            node, pin = graph.nodes[node_id], self._pins.get(node_id)
            if pin is not None and pin not in devices and self.support.supports(node, pin):
                moved[node_id] = ", which has no room for it"
            for leaf in graph.leaves_read(node):
                read.setdefault(leaf, set()).update(devices)
        for leaf, devices_of in read.items():
            if leaf in graph.data and self._pins.get(leaf, min(devices_of)) not in devices_of:
                moved[leaf] = ", where nothing reads it"
        for node_id, why in moved.items():
            self.rules[node_id] += why
            self.notes.append(f"{graph.nodes[node_id].name}: {self.rules[node_id]}")

    def _most(self, pieces: Sequence[Piece], wanted: list[int], device: int) -> list[int]:
        """Return as many of the first pieces as a device has memory for."""
        room = self._share_bytes(device)

        def fits(count: int) -> bool:
            if not count:
                return True
            recorded = record(self.support, pieces, sorted(wanted[:count]), device)
            return recorded.plan.memory[device].needed_bytes <= room

        if fits(len(wanted)):
            return sorted(wanted)
        low, high = 0, len(wanted)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return sorted(wanted[:low])

    def _share_bytes(self, device: int) -> int:
        """Return the bytes of memory that a device may use.

        Devices that share a memory share it equally. If they report different sizes, the smallest
        size of its users counts; devices that report less than half of the largest size use none.
        """
        sizes = {
            d: self.topology.devices[d].memory_bytes for d in self.topology.memory_peers(device)
        }
        sharing = [size for size in sizes.values() if 2 * size >= max(sizes.values())]
        return min(sharing) // len(sharing) if sizes[device] in sharing else 0


def _joined(pieces: Sequence[Piece], node_groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Merge consecutive node groups unless a third group could run concurrently with either.

    pieces: the pieces of the node groups, in topological order.
    """
    makers = {value: number for number, piece in enumerate(pieces) for value in piece.gives}
    before = [0] * len(pieces)  # bit set of the pieces it depends on
    behind = [1] * len(pieces)  # number of pieces that depend on it, itself included
    for number, piece in enumerate(pieces):
        for maker in {makers[value] for value in piece.reads if value in makers}:
            before[number] |= before[maker] | 1 << maker
        for other in range(number):
            behind[other] += before[number] >> other & 1
    out: list[NodeGroup] = []
    follows = False
    for number, node_group in enumerate(node_groups):
        alone = before[number].bit_count() + behind[number] == len(pieces)
        if follows and alone and out[-1].candidate_devices == node_group.candidate_devices:
            out[-1] = NodeGroup((*out[-1].nodes, *node_group.nodes), node_group.candidate_devices)
        else:
            out.append(node_group)
        follows = alone
    return out


def _pieces_of(support: OpSupport, node_groups: Sequence[NodeGroup]) -> list[Piece]:
    """Return the pieces of node groups, without costs."""
    graph = support.graph
    roots = graph.view_bases
    of_node = {n: number for number, node_group in enumerate(node_groups) for n in node_group.nodes}
    reads: list[dict[int, None]] = [{} for _ in node_groups]
    gives: list[dict[int, None]] = [{} for _ in node_groups]
    for number, node_group in enumerate(node_groups):
        for operand in (i for n in node_group.nodes for i in graph.nodes[n].inputs):
            # whole values are transferred: whether a part is there already depends on the run
            value = roots[operand]
            if value in graph.data or of_node.get(value) == number:
                continue
            reads[number][value] = None
            if value in of_node:
                gives[of_node[value]][value] = None
    for value in (graph.view_base(node) for _, node in graph.outputs):
        if value in of_node:
            gives[of_node[value]][value] = None
    return [
        Piece(node_group.nodes, tuple(sorted(reads[i])), tuple(sorted(gives[i])), {}, 0.0)
        for i, node_group in enumerate(node_groups)
    ]


def _ranked(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return pieces with their upward rank by mean cost over devices, as in HEFT."""
    makers = {value: number for number, piece in enumerate(pieces) for value in piece.gives}
    rank = [0.0] * len(pieces)
    for number in reversed(range(len(pieces))):
        piece = pieces[number]
        rank[number] += sum(piece.seconds.values()) / len(piece.seconds)
        for maker in {makers[v] for v in piece.reads if v in makers}:
            rank[maker] = max(rank[maker], rank[number])
    return tuple(replace(piece, rank=rank[number]) for number, piece in enumerate(pieces))


# -- one device ------------------------------------------------------------------------------------
