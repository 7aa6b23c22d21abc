"""Op support: the devices that can run each node, and its time there, computed once per distinct
call and device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from ...common.dtypes import WORD_BYTES
from ...common.formatting import format_share
from ...ir.graph import Graph, Node
from ...topology.topology import Topology
from . import node_cost

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class OpSupport:
    """The support and cost of the nodes of one graph on one topology, with all results cached.

    resident: for each device, the weights, constants and states that it already holds, by node.
    observed: computed values that the user observes.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        resident: Mapping[int, frozenset[int]] | None = None,
        observed: Collection[int] = (),
        pipeline_order: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self.observed = tuple(sorted(set(observed)))
        self.observed_roots = frozenset(graph.view_base(value) for value in observed)
        self.topology = topology
        self.resident = resident or {}
        self._pipeline_order = pipeline_order or {}
        self.state_devices: Mapping[int, int] = {
            node: device
            for device, nodes in self.resident.items()
            for node in nodes
            if graph.nodes[node].op == "state"
        }
        """The device of each state that has one already. States stay there."""
        self.alike = topology.alike()
        """For each device, the first one with equal figures. Equal devices share all cached
        results.
        """
        self._same: list[dict[int, tuple[str | None, bool]]] = _shared_caches(self.alike)
        self._needs: list[dict[int, tuple[int, int, int]]] = _shared_caches(self.alike)
        self._seconds: list[dict[int, float]] = _shared_caches(self.alike)
        self._longest: list[dict[int, float]] = _shared_caches(self.alike)

    def unsupported_reason(self, node: Node, device: int) -> str | None:
        """Return the reason that a device cannot run a node, or None if it can."""
        kind = self.graph.kinds[node.id]
        answer = self._same[device].get(kind)
        if answer is None:
            reason = node_cost.unsupported_reason(self.topology.devices[device], self.graph, node)
            answer = reason, reason is None and self._may_fill(node, device)
            self._same[device][kind] = answer
        reason, may_fill = answer
        return self._too_large(node, device) if may_fill else reason

    def scratch_words(self, node: Node, device: int) -> int:
        """Return the scratch memory of a node on a device, in words."""
        return self._need(node, device)[0]

    def inner_barriers(self, node: Node, device: int, in_place: bool = False) -> int:
        """Return the number of barriers between the dispatches of a node.

        in_place: True if the result overwrites the operand that the op keeps in place.
        """
        return self._need(node, device)[1 + in_place]

    def _need(self, node: Node, device: int) -> tuple[int, int, int]:
        known, call = self._needs[device], self.graph.signatures[node.id]
        if call not in known:
            spec = self.topology.devices[device]
            known[call] = 0, 0, 0
            if spec.kind != "cpu":
                lowering = node_cost.lower_node(spec, self.graph, node)
                apart, there = (
                    sum(dispatch.barrier for dispatch in lowering.run(in_place))
                    for in_place in (False, True)
                )
                known[call] = lowering.scratch_words, apart, there
        return known[call]

    def node_seconds(self, node_id: int, device: int) -> float:
        """Return the expected time of a node on a device."""
        known, call = self._seconds[device], self.graph.signatures[node_id]
        if call not in known:
            spec, node = self.topology.devices[device], self.graph.nodes[node_id]
            known[call] = node_cost.node_seconds(spec, self.graph, node)
        return known[call]

    def longest_seconds(self, node_id: int, device: int) -> float:
        """Return the time of a node that a submission must allow for."""
        known, call = self._longest[device], self.graph.signatures[node_id]
        if call not in known:
            spec, node = self.topology.devices[device], self.graph.nodes[node_id]
            known[call] = node_cost.longest_seconds(spec, self.graph, node)
        return known[call]

    def split_seconds(self, nodes: Iterable[int], device: int) -> float:
        """Return the expected time of several nodes in one submission."""
        seconds = sum([self.node_seconds(n, device) for n in nodes])
        return node_cost.submission_seconds(self.topology.devices[device]) + seconds

    def flops(self, node: Node) -> float:
        """Return the floating-point operations of a node."""
        return node.declaration.work(self.graph.input_types(node), node.type, node.attrs).flops

    def missing_bytes(self, value: int, device: int) -> int:
        """Return the bytes that a value needs on a device, or 0 for a weight that the device
        already holds.
        """
        if value in self.resident.get(device, frozenset()):
            return 0
        return self.graph.words[value] * WORD_BYTES

    def _may_fill(self, node: Node, device: int) -> bool:
        """Return True if a node of this kind may exceed the memory when none of its operands is
        resident.
        """
        words = self.graph.words
        need = words[node.id] + sum(words[i] for i in self.graph.leaves_read(node))
        need += self.scratch_words(node, device)
        spec = self.topology.devices[device]
        return spec.kind != "cpu" and need * WORD_BYTES > spec.memory_bytes

    def _too_large(self, node: Node, device: int) -> str | None:
        """Return the reason if leaves and result of a node exceed the memory of a device."""
        spec = self.topology.devices[device]
        values = {*self.graph.leaves_read(node), node.id}
        need = sum(self.missing_bytes(value, device) for value in values)
        need += WORD_BYTES * self.scratch_words(node, device)
        if need <= spec.memory_bytes:
            return None
        of = format_share(need, spec.memory_bytes)
        return f"{spec.name} is full: {node.name} alone takes {of}"

    def supports(self, node: Node, device: int) -> bool:
        return self.unsupported_reason(node, device) is None

    @cached_property
    def computed(self) -> tuple[Node, ...]:
        """The nodes that run: neither leaves nor views."""
        return tuple(n for n in self.graph.ops if n.id not in self.graph.views)

    @cached_property
    def pipeline_order(self) -> tuple[int, ...]:
        """The pipeline position of each node in the order that the caller asks for; all 0 without
        one.

        A node without a position takes the largest position of its operands, or else the smallest
        of its readers. No node comes before its operands.
        """
        count = len(self.graph.nodes)
        if not self._pipeline_order:
            return (0,) * count
        slots = [self._pipeline_order.get(node.name) for node in self.graph.nodes]
        for node in self.computed:
            before = [t for p in self.operands[node.id] if (t := slots[p]) is not None]
            if slots[node.id] is None:
                slots[node.id] = max(before, default=None)
        for node in reversed(self.computed):
            if slots[node.id] is None:
                after = [t for r in self.readers[node.id] if (t := slots[r]) is not None]
                slots[node.id] = min(after, default=0)
        pipeline_order = [slot or 0 for slot in slots]
        for node in self.computed:
            pipeline_order[node.id] = max(
                [pipeline_order[node.id], *(pipeline_order[p] for p in self.operands[node.id])]
            )
        return tuple(pipeline_order)

    @cached_property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """For each node that runs, the distinct roots of its operands; empty for other nodes."""
        roots = self.graph.view_bases
        out: list[tuple[int, ...]] = [()] * len(roots)
        for node in self.computed:
            out[node.id] = tuple(dict.fromkeys([roots[i] for i in node.inputs]))
        return tuple(out)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each root, the nodes that read it or a view of it, in topological order."""
        out: list[list[int]] = [[] for _ in self.graph.nodes]
        for node in self.computed:
            for operand in self.operands[node.id]:
                out[operand].append(node.id)
        return tuple(map(tuple, out))


def _shared_caches(alike: Sequence[int]) -> list[dict[Key, Answer]]:
    """Return an empty cache for each device. Equal devices share one."""
    answers: dict[int, dict[Key, Answer]] = {}
    return [answers.setdefault(first, {}) for first in alike]
