"""Rewriter: builds a new graph from an old one, node by node, and tracks which new node replaces
which old one.

    x -> transpose t -> matmul y -> mul by 1 z -> relu r        the old graph
    x ----------------> matmul y' ----------------> relu r      y' replaces t, y and z

A rule is a function (rewriter, node) -> node id or None. It gets a node of the old graph with its
operands in the new one, and returns its replacement there: an existing node, or one that it has
emitted. None leaves the node unchanged. Equal calls are merged into one node.

Complexity: O(nodes + edges), times the cost of the rules. Examples: tests/passes/test_passes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ..common.dtypes import NDArray, TensorType, canonical_dtype
from ..ir.attrs import Attrs, AttrValue
from ..ir.evaluate import infer
from ..ir.graph import INLINE_BYTES, Graph, Node
from ..ir.op import Op, get_op
from ..storage.lazy_array import ArrayLike, as_array
from .constraints import RewriteConstraints

Rule = Callable[["Rewriter", Node], "int | None"]
Rules = Mapping[str, Sequence[Rule]]
"""The rules for nodes of an op, by its name, in the order in which they are tried."""

HELD = 2
"""Extra uses counted for a value that must not be fused, besides its actual uses."""


class Rewriter:
    """The new graph while it is being built."""

    def __init__(self, graph: Graph, constraints: RewriteConstraints, whole: bool = False) -> None:
        self._old = graph
        self._whole = whole
        self._pinned_devices = constraints.pinned_devices
        self._observed = constraints.observed
        self._limits = constraints.limits
        self._nodes: list[Node] = []
        self._data: dict[int, ArrayLike] = {}
        self._keys: dict[int, object] = {}
        self._readers: list[int] = []
        self._pinned_device: list[str | None] = []
        self._new: list[int] = []
        self._equal: dict[object, int] = {}
        self._names: set[str] | None = None
        self._current_name: str = ""
        self._emitted_device: str | None = None
        self._changed = False
        self._ahead: dict[int, int] = {}  # leaves that a rule needed before they were visited
        self._pending = count_readers(graph, constraints)

    # -- queries of rules --------------------------------------------------------------------------

    def __getitem__(self, node_id: int) -> Node:
        """Return a node of the new graph."""
        return self._nodes[node_id]

    def array(self, node_id: int) -> NDArray | None:
        """Return the elements of a constant; None for other nodes."""
        return self.data(node_id) if self._nodes[node_id].op == "constant" else None

    def scalar(self, node_id: int) -> float | int | None:
        """Return the value of a constant with a single element; None for other nodes."""
        array = self.array(node_id)
        return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None

    def data(self, node_id: int) -> NDArray | None:
        """Return the elements of a constant or weight; None for other nodes."""
        held = self._data.get(node_id)
        return None if held is None else as_array(held)

    def key(self, node_id: int) -> object:
        """Return the key of a leaf; graphs that share a leaf have equal keys."""
        return self._keys.get(node_id)

    def has_single_use(self, node_id: int) -> bool:
        """Return True if only the current node uses a value, on its device: it may be fused."""
        return self.is_read(node_id, 1)

    def is_read(self, node_id: int, times: int) -> bool:
        """Return True if a value has exactly `times` uses and may be fused into them."""
        return self._readers[node_id] == times and self.same_device(node_id)

    def same_device(self, node_id: int) -> bool:
        """Return True if a node is pinned as the current node is."""
        return self._pinned_device[node_id] == self._emitted_device

    def is_free(self, node_id: int) -> bool:
        """Return True if the user has not pinned a node."""
        return self._pinned_device[node_id] is None

    def allows(self, storage_buffers: int) -> bool:
        """Return True if kernels may bind this many buffers on every candidate device."""
        return self._limits is None or self._limits.storage_buffers >= storage_buffers

    def of(self, old_id: int) -> int:
        """Return the replacement of a visited node of the old graph, or of any leaf."""
        if old_id < len(self._new):
            return self._new[old_id]
        if old_id not in self._ahead:
            node, pinned_device = self._old.nodes[old_id], self._emitted_device
            self._emitted_device = self._pinned_devices.get(node.name)
            self._ahead[old_id] = self._visit(node, ())
            self._emitted_device = pinned_device
        return self._ahead[old_id]

    # -- emitting nodes ----------------------------------------------------------------------------

    def emit(
        self, op: str, inputs: Iterable[int], attrs: Mapping[str, AttrValue] | None = None
    ) -> int:
        """Return a node of the new graph that computes a call, an existing one if possible."""
        operands, frozen = tuple(inputs), attrs if isinstance(attrs, Attrs) else Attrs(attrs)
        types = tuple([self._nodes[i].type for i in operands])
        type_ = infer(get_op(op), types, frozen)
        return self._emit(
            op, operands, frozen, type_, "", alone=self._current_name in self._observed
        )

    def constant(self, array: NDArray, key: object, op: str = "constant") -> int:
        """Return a leaf with these elements. key: equal for equal leaves of several graphs."""
        type_ = TensorType(array.shape, canonical_dtype(array.dtype))
        attrs = Attrs({"shape": type_.shape, "dtype": type_.dtype})
        array = np.ascontiguousarray(array).reshape(array.shape)
        array.setflags(write=False)
        return self._leaf(op, attrs, type_, "", array, key)

    # -- traversal ---------------------------------------------------------------------------------

    def run(self, rules: Rules) -> Graph:
        """Return the new graph; the old one if no rule changed anything."""
        old, pinned_devices = self._old, self._pinned_devices
        for node in old.nodes:
            self._current_name = node.name
            self._emitted_device = pinned_devices.get(node.name)
            before = len(self._nodes)
            new_id = self._ahead.get(node.id, -1)
            new_id = self._visit(node, rules.get(node.op, ())) if new_id < 0 else new_id
            is_new = before <= new_id
            if is_new and self._nodes[new_id].name != node.name:
                self._rename(new_id, node.name)
            self._new.append(new_id)
            alone = is_new and len(self._nodes) == before + 1
            pending = self._pending[node.id]
            if alone and pending and self._is_same(self._nodes[new_id], node):
                self._readers[new_id] = pending  # it reads the operands of the old node
                continue
            if not alone:
                self._changed = True
            self._count(new_id, pending)
            for operand in node.inputs:  # the old node no longer reads them
                self._count(self._new[operand], -1)
        return self._finish() if self._changed else old

    def _is_same(self, new_node: Node, node: Node) -> bool:
        """Return True if a new node reads the replacements of the operands of an old one."""
        new = self._new
        return new_node.inputs == tuple([new[i] for i in node.inputs])

    def _count(self, node_id: int, times: int) -> None:
        """Count uses. A node counts as a reader only while it has readers itself."""
        changes = [(node_id, times)]
        while changes:
            node_id, times = changes.pop()
            before = self._readers[node_id]
            self._readers[node_id] = after = before + times
            if (before > 0) != (after > 0):
                change = 1 if after > 0 else -1
                changes += [(i, change) for i in self._nodes[node_id].inputs]

    def _visit(self, node: Node, rules: Sequence[Rule]) -> int:
        declared, old = node.declaration, self._old
        if declared.leaf or node.op == "state":
            array, key = old.data.get(node.id), old.keys.get(node.id)
            return self._leaf(node.op, node.attrs, node.type, node.name, array, key)
        new, next_id = self._new, len(self._nodes)
        operands = tuple([new[i] for i in node.inputs])
        seen = node
        if next_id != node.id or operands != node.inputs:
            seen = Node(next_id, node.op, operands, node.attrs, node.type, node.name)
        observed = node.name in self._observed
        if self._whole or not observed:
            for rule in rules:
                found = rule(self, seen)
                if found is not None:
                    assert self._nodes[found].type == node.type, (node, self._nodes[found])
                    self._changed = True
                    return found
        twin = self._twin(declared, operands, node.attrs, observed)
        if twin is not None:
            return twin
        if len(self._nodes) != next_id:  # a rule has emitted nodes and then returned None
            return self._append(node.op, operands, node.attrs, node.type, node.name)
        return self._add(seen)

    def _emit(
        self,
        op: str,
        operands: tuple[int, ...],
        attrs: Attrs,
        type_: TensorType,
        name: str,
        alone: bool = False,
    ) -> int:
        twin = self._twin(get_op(op), operands, attrs, alone)
        return self._append(op, operands, attrs, type_, name) if twin is None else twin

    def _twin(
        self, declared: Op, operands: tuple[int, ...], attrs: Attrs, alone: bool
    ) -> int | None:
        """Return an existing equal call; else register the next node as this call. alone: the node
        must not be replaced by another one.
        """
        if declared.stateful or declared.opaque:
            return None
        key, following = (declared.name, operands, attrs, self._emitted_device), len(self._nodes)
        if alone:
            self._equal[key] = following
            return None
        found = self._equal.setdefault(key, following)
        return None if found == following else found

    def _leaf(
        self,
        op: str,
        attrs: Attrs,
        type_: TensorType,
        name: str,
        array: ArrayLike | None,
        key: object,
    ) -> int:
        """Add a leaf; small constants of equal elements are merged."""
        if op == "constant" and array is not None and array.nbytes <= INLINE_BYTES:
            same = (type_, as_array(array).tobytes(), self._emitted_device)
            twin = self._equal.setdefault(same, len(self._nodes))
            if twin != len(self._nodes):
                return twin
        leaf_id = self._append(op, (), attrs, type_, name)
        if array is not None:
            self._data[leaf_id] = array
        if key is not None:
            self._keys[leaf_id] = key
        return leaf_id

    def _append(
        self, op: str, operands: tuple[int, ...], attrs: Attrs, type_: TensorType, name: str
    ) -> int:
        node_id = len(self._nodes)
        if not name:
            name = self._free_name(f"{self._current_name}.{op}")
        return self._add(Node(node_id, op, operands, attrs, type_, name))

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        self._readers.append(0)
        self._pinned_device.append(self._emitted_device)
        return node.id

    def _rename(self, node_id: int, name: str) -> None:
        n = self._nodes[node_id]
        self._nodes[node_id] = Node(n.id, n.op, n.inputs, n.attrs, n.type, name)

    def _free_name(self, wanted: str) -> str:
        if self._names is None:
            self._names = {n.name for n in self._old.nodes} | self._old.aliases.keys()
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    # -- finishing ---------------------------------------------------------------------------------

    def _finish(self) -> Graph:
        """Remove unused nodes; their names become aliases."""
        old, new_nodes = self._old, self._nodes
        new_outputs = [(name, self._new[i]) for name, i in old.outputs]
        alive = [False] * len(new_nodes)
        for _, node_id in new_outputs:
            alive[node_id] = True
        for node in reversed(new_nodes):
            wanted = alive[node.id] or node.op in ("input", "state", "assign")
            if wanted or node.name in self._observed:
                alive[node.id] = True
                for operand in node.inputs:
                    alive[operand] = True
        place, nodes = [-1] * len(new_nodes), list[Node]()
        for node in new_nodes:
            if alive[node.id]:
                place[node.id] = len(nodes)
                inputs = tuple([place[i] for i in node.inputs])
                if node.id != len(nodes) or inputs != node.inputs:
                    node = Node(len(nodes), node.op, inputs, node.attrs, node.type, node.name)
                nodes.append(node)
        stand = self._stand_ins(place)
        merged = {name: stand[i] for name, i in old.aliases.items()}
        for node in old.nodes:
            if nodes[stand[node.id]].name != node.name:
                merged[node.name] = stand[node.id]
        data = {place[i]: array for i, array in self._data.items() if alive[i]}
        keys = {place[i]: key for i, key in self._keys.items() if alive[i]}
        initial = {stand[i]: array for i, array in old.initial.items()}
        maps = (MappingProxyType(data), MappingProxyType(keys), MappingProxyType(initial))
        outputs = tuple((name, place[i]) for name, i in new_outputs)
        backed_up = tuple(place[self._new[i]] for i in old.backed_up_states)
        return Graph(tuple(nodes), outputs, *maps, backed_up, MappingProxyType(merged))

    def _stand_ins(self, place: Sequence[int]) -> list[int]:
        """Return the replacement of each node of the old graph."""
        old = self._old
        reader = [-1] * len(old.nodes)
        for node in reversed(old.nodes):
            for operand in node.inputs:
                reader[operand] = node.id
        stand = [place[i] for i in self._new]
        for node_id in range(len(stand) - 1, -1, -1):
            if stand[node_id] < 0:  # its readers come later, and theirs are known
                stand[node_id] = stand[reader[node_id]]
        return stand


def count_readers(graph: Graph, constraints: RewriteConstraints) -> list[int]:
    """Return the number of uses of each value, plus HELD if it must not be fused."""
    out = [0] * len(graph.nodes)
    for node in graph.nodes:
        for operand in node.inputs:
            out[operand] += 1
        if node.name in constraints.observed or node.op == "assign":
            out[node.id] += HELD
    for _, node_id in graph.outputs:
        out[node_id] += HELD
    return out


def rewrite(
    graph: Graph, rules: Rules, constraints: RewriteConstraints, whole: bool = False
) -> Graph:
    """Return an equivalent graph: apply rules to the nodes in order, merge equal calls, and remove
    unused nodes.

    whole: rules always emit a new node, so they are applied to observed values, too.
    """
    return Rewriter(graph, constraints, whole).run(rules)
