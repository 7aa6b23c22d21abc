"""Support: which devices can run which nodes, asked once per node and device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from ..graph import Graph, Node
from .machine import Machine


class Support:
    """What one graph can do on one machine; remembers every answer.

    resident: for a device the weights and constants, by node, that are there already.
    """

    def __init__(
        self, graph: Graph, machine: Machine, resident: Mapping[int, frozenset[int]] | None = None
    ) -> None:
        self.graph = graph
        self.machine = machine
        self.resident = resident or {}
        self._answers: dict[tuple[int, int], str | None] = {}
        self._same: dict[tuple[object, ...], str | None] = {}
        self._scratch: dict[tuple[object, ...], int] = {}

    def why_not(self, node: Node, device: int) -> str | None:
        """Returns why a device cannot run a node, or None when it can."""
        key = (node.id, device)
        if key not in self._answers:
            leaves = tuple(self.graph.nodes[i].type for i in self.graph.leaves_read(node))
            unfit = self.graph.unfit(node)
            call = (*self._call(node, device), leaves, unfit)
            if call not in self._same:
                self._same[call] = self.machine.devices[device].why_not(self.graph, node)
            self._answers[key] = self._same[call] or self._too_large(node, device)
        return self._answers[key]

    def _call(self, node: Node, device: int) -> tuple[object, ...]:
        return (node.op, self.graph.input_types(node), node.type, node.attrs, device)

    def scratch_words(self, node: Node, device: int) -> int:
        """Returns the words that a node needs beside its result while it runs on a device."""
        spec, call = self.machine.devices[device], self._call(node, device)
        if spec.kind == "cpu":
            return 0
        if call not in self._scratch:
            self._scratch[call] = spec.lower(self.graph, node).scratch_words
        return self._scratch[call]

    def flops(self, node: Node) -> float:
        """Returns the arithmetic of a node."""
        return node.declaration.work(self.graph.input_types(node), node.type, node.attrs).flops

    def missing_bytes(self, value: int, device: int) -> int:
        """Returns what a value takes on a device, 0 for a weight that is there already."""
        if value in self.resident.get(device, frozenset()):
            return 0
        return self.graph.nodes[value].type.device_bytes

    def _too_large(self, node: Node, device: int) -> str | None:
        """A node whose leaves and result fill the memory runs elsewhere, whatever else does."""
        spec = self.machine.devices[device]
        values = {*self.graph.leaves_read(node), node.id}
        if spec.kind == "cpu":
            return None
        need = sum(self.missing_bytes(value, device) for value in values)
        need += 4 * self.scratch_words(node, device)
        if need <= spec.memory_bytes:
            return None
        return f"{spec.name} is full: {node.name} alone takes {need} of {spec.memory_bytes} bytes"

    def can(self, node: Node, device: int) -> bool:
        return self.why_not(node, device) is None

    @cached_property
    def computed(self) -> tuple[Node, ...]:
        """The nodes that run: neither leaves nor views."""
        return tuple(n for n in self.graph.ops if n.id not in self.graph.views)

    @cached_property
    def operands(self) -> Mapping[int, tuple[int, ...]]:
        """For each node that runs the roots of its operands, each once."""
        root = self.graph.root
        return MappingProxyType(
            {n.id: tuple(dict.fromkeys(root(i) for i in n.inputs)) for n in self.computed}
        )

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        """For each root the nodes that run and read it or a view of it, in topological order."""
        out: dict[int, list[int]] = {n.id: [] for n in self.graph.nodes}
        for node in self.computed:
            for operand in self.operands[node.id]:
                out[operand].append(node.id)
        return MappingProxyType({k: tuple(v) for k, v in out.items()})
