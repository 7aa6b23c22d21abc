"""GraphBuilder: builds a graph that replaces another graph.

Passes traverse the old graph and emit nodes here. A new node may have a pinned device and a
pipeline position. Names of old nodes are preserved if one new node has their value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from ..common.dtypes import NDArray, TensorType, numpy_dtype
from ..storage.lazy_array import ArrayLike, as_array
from .attrs import Attrs, AttrValue
from .evaluate import infer
from .graph import Graph, Node
from .op import get_op


@dataclass(frozen=True)
class BuildResult:
    """A new graph with its placement.

    Attributes
    ----------
    pinned_devices
        Devices of pinned nodes.
    pipeline_order
        Pipeline positions by node name.
    all_reduce_nodes
        Names of nodes that are terms or results of sums over devices.
    """

    graph: Graph
    pinned_devices: Mapping[int, str] = field(default_factory=dict)
    pipeline_order: Mapping[str, int] = field(default_factory=dict)
    all_reduce_nodes: frozenset[str] = frozenset()


class GraphBuilder:
    """Graph under construction, with the nodes emitted so far."""

    def __init__(self, old: Graph) -> None:
        self.old = old
        self._nodes: list[Node] = []
        self._names: dict[str, int] = {}
        self._reserved = {node.name for node in old.nodes}
        self._data: dict[int, ArrayLike] = {}
        self._keys: dict[int, object] = {}
        self._initial: dict[int, NDArray] = {}
        self._pinned_devices: dict[int, str] = {}
        self._pipeline_order: dict[str, int] = {}
        self._constants: dict[object, int] = {}
        self._all_reduce_nodes: set[int] = set()

    def __getitem__(self, node_id: int) -> Node:
        """Return a node of the new graph."""
        return self._nodes[node_id]

    def pinned_device(self, node_id: int) -> str | None:
        """Return the pinned device of a new node, or None."""
        return self._pinned_devices.get(node_id)

    def emit(
        self,
        op: str,
        inputs: Iterable[int],
        attrs: Mapping[str, AttrValue],
        name: str,
        device: str | None = None,
        position: int | None = None,
    ) -> int:
        """Emit a node and return its id.

        Parameters
        ----------
        name
            Name of the old node with this value, or a new name, which gets a number if it is in
            use.
        """
        operands, frozen = tuple(inputs), attrs if isinstance(attrs, Attrs) else Attrs(attrs)
        types = tuple(self._nodes[i].type for i in operands)
        type_ = infer(get_op(op), types, frozen)
        new_id = self._add(op, operands, frozen, type_, name, device)
        if position is not None:
            self._pipeline_order[self._nodes[new_id].name] = position
        return new_id

    def leaf(self, node: Node, device: str | None = None) -> int:
        """Return the leaf of the new graph that replaces a leaf of the old graph."""
        new_id = self._add(node.op, (), node.attrs, node.type, node.name, device)
        if node.id in self.old.data:
            self._data[new_id] = self.old.data[node.id]
        if node.id in self.old.initial:
            self._initial[new_id] = self.old.initial[node.id]
        if node.id in self.old.keys:
            self._keys[new_id] = self.old.keys[node.id]
        return new_id

    def part_of_leaf(
        self, node: Node, axis: int, start: int, size: int, name: str, key: object, device: str
    ) -> int:
        """Return a leaf that holds a slice of an old leaf along an axis."""
        old = self.old.initial if node.op == "state" else self.old.data
        cut = (slice(None),) * axis + (slice(start, start + size),)
        array = np.ascontiguousarray(as_array(old[node.id])[cut])
        array.setflags(write=False)
        type_ = TensorType(array.shape, node.type.dtype)
        attrs = Attrs({**node.attrs, "shape": type_.shape})
        new_id = self._add(node.op, (), attrs, type_, name, device)
        (self._initial if node.op == "state" else self._data)[new_id] = array
        self._keys[new_id] = key
        return new_id

    def note_all_reduce(self, ids: Iterable[int]) -> None:
        """Record nodes as terms or results of sums over devices."""
        self._all_reduce_nodes.update(ids)

    def scalar(self, value: float, dtype: str) -> int:
        """Return a constant with one element."""
        array = np.asarray(value, numpy_dtype(dtype))
        key = ("scalar", dtype, array.tobytes())
        if key not in self._constants:
            attrs = Attrs({"shape": (), "dtype": dtype})
            new_id = self._add("constant", (), attrs, TensorType((), dtype), "scalar", None)
            array.setflags(write=False)
            self._data[new_id], self._keys[new_id] = array, key
            self._constants[key] = new_id
        return self._constants[key]

    def finish(
        self, outputs: Mapping[str, int], shown: Iterable[int], old: Mapping[str, Sequence[int]]
    ) -> BuildResult:
        """Return the graph without unused nodes.

        Parameters
        ----------
        shown
            Nodes to retain.
        old
            For each name of the old graph the nodes that hold a part of its value, the best first.
        """
        roots = [*outputs.values(), *shown]
        ids = {i: at for at, i in enumerate(self._reachable(roots))}
        nodes = tuple(
            replace(self._nodes[i], id=at, inputs=tuple(ids[n] for n in self._nodes[i].inputs))
            for i, at in ids.items()
        )
        backed_up = tuple(
            n.inputs[1] for n in nodes if n.op == "assign" and nodes[n.inputs[0]].attrs["backup"]
        )
        there = {node.name for node in nodes}
        result = {
            name: next((ids[i] for i in some if i in ids), None) for name, some in old.items()
        }
        graph = Graph(
            nodes,
            tuple((name, ids[i]) for name, i in outputs.items()),
            MappingProxyType({ids[i]: v for i, v in self._data.items() if i in ids}),
            MappingProxyType({ids[i]: v for i, v in self._keys.items() if i in ids}),
            MappingProxyType({ids[i]: v for i, v in self._initial.items() if i in ids}),
            backed_up,
            {n: at for n, at in result.items() if at is not None and n not in there},
        )
        # a view is on the device of its base
        pinned_devices = {ids[i]: d for i, d in self._pinned_devices.items() if i in ids}
        pinned_devices = {i: device for i, device in pinned_devices.items() if i not in graph.views}
        pipeline_order = {
            name: position for name, position in self._pipeline_order.items() if name in there
        }
        all_reduce_nodes = frozenset(
            self._nodes[i].name for i in self._all_reduce_nodes if i in ids
        )
        return BuildResult(graph.verify(), pinned_devices, pipeline_order, all_reduce_nodes)

    def _reachable(self, wanted: Iterable[int]) -> list[int]:
        """Return in order the ancestors of the wanted nodes, and the nodes to retain."""
        alive = set(wanted)
        for node in reversed(self._nodes):
            if node.op in ("input", "assign") or node.id in alive:
                alive.update((node.id, *node.inputs))
        return sorted(alive)

    def _add(
        self,
        op: str,
        inputs: tuple[int, ...],
        attrs: Attrs,
        type_: TensorType,
        name: str,
        device: str | None,
    ) -> int:
        new_id, unique = len(self._nodes), name
        count = 0
        while unique in self._names or (count and unique in self._reserved):
            count += 1
            unique = f"{name}_{count}"
        self._nodes.append(Node(new_id, op, inputs, attrs, type_, unique))
        self._names[unique] = new_id
        if device:
            self._pinned_devices[new_id] = device
        return new_id
