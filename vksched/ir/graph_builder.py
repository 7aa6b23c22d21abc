"""Graph builder: a graph under construction that computes what another one does, in other pieces.

The passes of this room walk over a graph as it was written, and emit nodes here. A node of the new
graph may have a device and a turn; names of the old graph stay as long as one value has them.
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
    """A new graph. pinned_devices: the device of nodes that have one. pipeline_order: likewise, by
    name. all_reduce_nodes: names of nodes that are terms or results of sums over devices.
    """

    graph: Graph
    pinned_devices: Mapping[int, str] = field(default_factory=dict)
    pipeline_order: Mapping[str, int] = field(default_factory=dict)
    all_reduce_nodes: frozenset[str] = frozenset()


class GraphBuilder:
    """The new graph as far as it is made."""

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
        """A node of the new graph."""
        return self._nodes[node_id]

    def pinned_device(self, node_id: int) -> str | None:
        """Return the device of a node of the new graph; None where it may be anywhere."""
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
        """Return a new node. name: the name of a node of the old graph for the one that has its
        value; any other one gets a number where it is taken.
        """
        operands, frozen = tuple(inputs), attrs if isinstance(attrs, Attrs) else Attrs(attrs)
        types = tuple(self._nodes[i].type for i in operands)
        type_ = infer(get_op(op), types, frozen)
        made = self._add(op, operands, frozen, type_, name, device)
        if position is not None:
            self._pipeline_order[self._nodes[made].name] = position
        return made

    def leaf(self, node: Node, device: str | None = None) -> int:
        """Return the leaf of the new graph that stands for one of the old graph."""
        made = self._add(node.op, (), node.attrs, node.type, node.name, device)
        if node.id in self.old.data:
            self._data[made] = self.old.data[node.id]
        if node.id in self.old.initial:
            self._initial[made] = self.old.initial[node.id]
        if node.id in self.old.keys:
            self._keys[made] = self.old.keys[node.id]
        return made

    def part_of_leaf(
        self, node: Node, axis: int, start: int, size: int, name: str, key: object, device: str
    ) -> int:
        """Return a leaf that holds a range of one of the old graph, along an axis."""
        old = self.old.initial if node.op == "state" else self.old.data
        cut = (slice(None),) * axis + (slice(start, start + size),)
        array = np.ascontiguousarray(as_array(old[node.id])[cut])
        array.setflags(write=False)
        type_ = TensorType(array.shape, node.type.dtype)
        attrs = Attrs({**node.attrs, "shape": type_.shape})
        made = self._add(node.op, (), attrs, type_, name, device)
        (self._initial if node.op == "state" else self._data)[made] = array
        self._keys[made] = key
        return made

    def note_all_reduce(self, ids: Iterable[int]) -> None:
        """Remembers nodes as terms or results of sums over devices."""
        self._all_reduce_nodes.update(ids)

    def scalar(self, value: float, dtype: str) -> int:
        """Return a constant of one element."""
        array = np.asarray(value, numpy_dtype(dtype))
        key = ("scalar", dtype, array.tobytes())
        if key not in self._constants:
            attrs = Attrs({"shape": (), "dtype": dtype})
            made = self._add("constant", (), attrs, TensorType((), dtype), "scalar", None)
            array.setflags(write=False)
            self._data[made], self._keys[made] = array, key
            self._constants[key] = made
        return self._constants[key]

    def finish(
        self, outputs: Mapping[str, int], shown: Iterable[int], old: Mapping[str, Sequence[int]]
    ) -> BuildResult:
        """Return the graph without what nobody needs. shown: nodes that stay. old: for names of
        the old graph the nodes that have a part of the value, the best one first.
        """
        wanted = [*outputs.values(), *shown]
        ids = {i: at for at, i in enumerate(self._living(wanted))}
        nodes = tuple(
            replace(self._nodes[i], id=at, inputs=tuple(ids[n] for n in self._nodes[i].inputs))
            for i, at in ids.items()
        )
        kept = tuple(
            n.inputs[1] for n in nodes if n.op == "assign" and nodes[n.inputs[0]].attrs["backup"]
        )
        there = {node.name for node in nodes}
        found = {name: next((ids[i] for i in some if i in ids), None) for name, some in old.items()}
        graph = Graph(
            nodes,
            tuple((name, ids[i]) for name, i in outputs.items()),
            MappingProxyType({ids[i]: v for i, v in self._data.items() if i in ids}),
            MappingProxyType({ids[i]: v for i, v in self._keys.items() if i in ids}),
            MappingProxyType({ids[i]: v for i, v in self._initial.items() if i in ids}),
            kept,
            {n: at for n, at in found.items() if at is not None and n not in there},
        )
        # a view is where that lies which it shows
        pinned_devices = {ids[i]: d for i, d in self._pinned_devices.items() if i in ids}
        pinned_devices = {i: device for i, device in pinned_devices.items() if i not in graph.views}
        pipeline_order = {
            name: position for name, position in self._pipeline_order.items() if name in there
        }
        all_reduce_nodes = frozenset(
            self._nodes[i].name for i in self._all_reduce_nodes if i in ids
        )
        return BuildResult(graph.verify(), pinned_devices, pipeline_order, all_reduce_nodes)

    def _living(self, wanted: Iterable[int]) -> list[int]:
        """Return in their order the nodes that something wanted is made of, or that are kept."""
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
        made, unique = len(self._nodes), name
        count = 0
        while unique in self._names or (count and unique in self._reserved):
            count += 1
            unique = f"{name}_{count}"
        self._nodes.append(Node(made, op, inputs, attrs, type_, unique))
        self._names[unique] = made
        if device:
            self._pinned_devices[made] = device
        return made
