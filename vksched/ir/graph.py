"""Graph: a frozen computation graph with its nodes in topological order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..common.dtypes import INT64, NDArray, TensorType, numpy_dtype
from ..common.errors import GraphError, UnsupportedOp, VkschedError
from ..storage.lazy_array import ArrayLike, as_array
from .attrs import Attrs
from .evaluate import infer
from .op import Op, get_op, view_offset
from .tensor import Tensor
from .value_range import OF_DTYPE, Bounds, bounds_of_data, bounds_of_result, fits

FEW = 1 << 16
"""Maximum number of elements of a weight that is scanned for its bounds; int64 weights always are.
"""

INLINE_BYTES = 1024
"""Maximum size of constants that are compared by content."""


@dataclass(frozen=True)
class Node:
    """A value: an input, a weight, a constant or the result of an op."""

    id: int
    op: str
    inputs: tuple[int, ...]
    attrs: Attrs
    type: TensorType
    name: str
    declaration: Op = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "declaration", get_op(self.op))
        except UnsupportedOp as error:
            raise GraphError(f"[graph] {self.name} breaks its rule: {error}") from error

    def __reduce__(self) -> tuple[object, ...]:
        return Node, (self.id, self.op, self.inputs, self.attrs, self.type, self.name)

    def __str__(self) -> str:
        args = ", ".join(f"%{i}" for i in self.inputs)
        shown = len(self.attrs) and not self.declaration.leaf
        attrs = f" {{{self.attrs}}}" if shown else ""
        return f"%{self.id} {self.name}: {self.type} = {self.op}({args}){attrs}"


@dataclass(frozen=True, eq=False)
class Graph:
    """Frozen computation graph.

    Attributes
    ----------
    nodes, outputs
        Nodes, operands before users; (name, node id) in the caller's order.
    data, initial
        Arrays of weights and constants; initial values of states. By node id.
    keys
        Identity of each array; equal in two graphs that share the array.
    backed_up_states, aliases
        Next values of states that are also copied to the CPU; nodes that replace merged names.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, int], ...]
    data: Mapping[int, ArrayLike]
    keys: Mapping[int, object]
    initial: Mapping[int, NDArray] = field(default_factory=dict)
    backed_up_states: tuple[int, ...] = ()
    aliases: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op == "input")

    @cached_property
    def weights(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op == "weight")

    def arrays(self) -> dict[int, NDArray]:
        """Return the arrays of weights and constants, materialized."""
        return {node_id: as_array(held) for node_id, held in self.data.items()}

    @cached_property
    def key(self) -> object:
        """Return a key that is equal for graphs with equal computations, weights and states.

        Small constants are compared by content, other arrays by identity.
        """
        nodes = tuple((n.op, n.inputs, n.attrs, n.type, n.name) for n in self.nodes)
        held: list[object] = []
        for node_id, owner in self.keys.items():
            array = self.data.get(node_id) if self.nodes[node_id].op == "constant" else None
            small = array is not None and array.nbytes <= INLINE_BYTES
            held.append(as_array(array).tobytes() if small and array is not None else owner)
        return nodes, self.outputs, tuple(held), self.backed_up_states

    @cached_property
    def states(self) -> Mapping[int, int]:
        """Map each node that reads or writes a state to the node that reads it."""
        out = {n.id: n.id for n in self.nodes if n.op == "state"}
        out.update((n.id, n.inputs[0]) for n in self.nodes if n.op == "assign")
        return MappingProxyType(out)

    @cached_property
    def ops(self) -> tuple[Node, ...]:
        """Return the nodes that compute or view a value, i.e. all except the leaves."""
        leaves = self._leaves
        return tuple([n for n in self.nodes if n.id not in leaves])

    @cached_property
    def signatures(self) -> tuple[int, ...]:
        """Return the signature number of each node; equal calls share one.

        Type checks and cost estimates are done once per signature.
        """
        types: dict[TensorType, int] = {}
        kinds = [types.setdefault(node.type, len(types)) for node in self.nodes]
        over, calls = self.overwritten, dict[tuple[object, ...], int]()
        call_keys = (
            (n.op, n.attrs, n.id in over, kinds[n.id], *[kinds[i] for i in n.inputs])
            for n in self.nodes
        )
        return tuple(calls.setdefault(each, len(calls)) for each in call_keys)

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """Return nodes that partially update a state, in place if they run on its device."""
        reads = Counter(i for node in self.nodes for i in node.inputs)
        reads.update((*self.backed_up_states, *(i for _, i in self.outputs)))
        result = set[int]()
        for node_id, state in self.states.items():
            if node_id == state:
                continue
            value = self.nodes[self.nodes[node_id].inputs[1]]
            how = value.declaration.in_place
            positions = [position for position, i in enumerate(value.inputs) if i == state]
            if how is not None and positions == [how.updated_operand] and reads[value.id] == 1:
                result.add(value.id)
        return frozenset(result)

    @cached_property
    def calls(self) -> tuple[Node, ...]:
        """Return the first node of each signature, by signature number."""
        first: dict[int, Node] = {}
        for call, node in zip(self.signatures, self.nodes, strict=True):
            first.setdefault(call, node)
        return tuple(first.values())

    @cached_property
    def views(self) -> Mapping[int, tuple[int, int]]:
        """Map each view to (base node, word offset within it)."""
        out: dict[int, tuple[int, int]] = {}
        offsets = [
            None
            if node.declaration.leaf
            else view_offset(node.declaration, self.input_types(node), node.attrs)
            for node in self.calls
        ]
        for node in self.ops:
            offset = offsets[self.signatures[node.id]]
            if offset is not None:
                root, base = out.get(node.inputs[0], (node.inputs[0], 0))
                out[node.id] = (root, base + offset)
        return MappingProxyType(out)

    @cached_property
    def view_bases(self) -> tuple[int, ...]:
        """Return for each node the base of a view, or the node itself."""
        views = self.views
        return tuple(views[i][0] if i in views else i for i in range(len(self.nodes)))

    @cached_property
    def words(self) -> tuple[int, ...]:
        """Return the number of device words of each node."""
        of_call = [node.type.words for node in self.calls]
        return tuple([of_call[call] for call in self.signatures])

    @cached_property
    def bounds(self) -> tuple[Bounds | None, ...]:
        """Return the bounds of each node's values, or None if they are unknown."""
        out: list[Bounds | None] = []
        for node in self.nodes:
            if node.id in self.data:
                is_scanned = node.type.dtype == INT64 or node.type.size <= FEW
                scanned = bounds_of_data(as_array(self.data[node.id])) if is_scanned else None
                out.append(scanned or OF_DTYPE.get(node.type.dtype))
            elif node.declaration.leaf or node.op == "state":
                low, high = node.attrs.get("low"), node.attrs.get("high")
                is_bounded = isinstance(low, int) and isinstance(high, int)
                out.append((low, high) if is_bounded else OF_DTYPE.get(node.type.dtype))  # type: ignore[arg-type]
            else:
                known, types = tuple(out[i] for i in node.inputs), self.input_types(node)
                op = node.declaration
                out.append(bounds_of_result(op, known, types, node.type, node.attrs))
        return tuple(out)

    def unsupported(self, node: Node) -> str | None:
        """Return the reason why a node's int64 values do not fit 32 bits, or None if they do."""
        if not self._has_int64:
            return None
        for value in (*node.inputs, node.id):
            if self.nodes[value].type.dtype == INT64 and not fits(self.bounds[value]):
                if value == node.id and self.bounds[value] is None and node.inputs:
                    return f"no bounds are known for the int64 values that {node.op} makes here"
                known = "unknown" if self.bounds[value] is None else f"{self.bounds[value]}"
                return (
                    f"int64 values of {self.nodes[value].name} may not fit 32 bits (bounds: "
                    f"{known}); try vs.input(..., bounds=(low, high)) or vs.cast to int32"
                )
        return None

    @cached_property
    def _has_int64(self) -> bool:
        return any(node.type.dtype == INT64 for node in self.nodes)

    def input_types(self, node: Node) -> tuple[TensorType, ...]:
        return tuple([self.nodes[i].type for i in node.inputs])

    @cached_property
    def stands_for(self) -> Mapping[int, tuple[str, ...]]:
        """Map each node to the names of the nodes that were merged into it."""
        out: dict[int, list[str]] = {}
        for name, node_id in self.aliases.items():
            out.setdefault(node_id, []).append(name)
        return MappingProxyType({node_id: tuple(names) for node_id, names in out.items()})

    def view_base(self, node_id: int) -> int:
        """Return the base of a view, or the node itself."""
        return self.view_bases[node_id]

    def leaves_read(self, node: Node) -> tuple[int, ...]:
        """Return the leaves that a node reads, directly or through views."""
        roots, leaves = self.view_bases, self._leaves
        return tuple([roots[i] for i in node.inputs if roots[i] in leaves])

    def transitive_leaves(self, node: Node) -> tuple[int, ...]:
        """Return the leaves and states that a node reads, including through dequantize nodes."""
        result: list[int] = []
        for operand in node.inputs:
            root = self.nodes[self.view_bases[operand]]
            read = root.inputs if root.declaration.is_dequantize else (root.id,)
            result += [self.view_bases[i] for i in read]
        return tuple([i for i in result if i in self._leaves or self.states.get(i) == i])

    @cached_property
    def _leaves(self) -> frozenset[int]:
        is_leaf = [node.declaration.leaf for node in self.calls]
        return frozenset([i for i, call in enumerate(self.signatures) if is_leaf[call]])

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Return the kind of each node: a device supports all nodes of a kind or none.

        Nodes of a kind have equal signatures, equal leaf types, and equal results of the 32-bit
        check.
        """
        numbers: dict[tuple[object, ...], int] = {}
        calls, roots, leaves = self.signatures, self.view_bases, self._leaves
        out: list[int] = []
        for node in self.nodes:
            read = [calls[roots[i]] for i in node.inputs if roots[i] in leaves]
            reason = self.unsupported(node) if self._has_int64 else None
            out.append(numbers.setdefault((calls[node.id], reason, *read), len(numbers)))
        return tuple(out)

    def verify(self) -> Graph:
        """Check order, ids, names, types and data, and return the graph.

        Raises
        ------
        GraphError
            The first violation.
        """
        names: set[str] = set()
        for position, node in enumerate(self.nodes):
            if node.id != position:
                raise GraphError(f"[graph] expected id {position}, got {node.id} ({node.name})")
            if node.name in names:
                raise GraphError(f"[graph] two nodes are named {node.name!r}; try another name")
            names.add(node.name)
            for i in node.inputs:
                if not 0 <= i < position:
                    raise GraphError(f"[graph] {node.name} reads a value that comes later")
        _verify_arrays(self)
        for node in self.calls:
            try:
                inferred = infer(node.declaration, self.input_types(node), node.attrs)
            except (VkschedError, ValueError, IndexError, KeyError, AssertionError) as error:
                raise GraphError(f"[graph] {node.name} breaks its rule: {error}") from error
            if inferred != node.type:
                raise GraphError(f"[graph] {node.name} is {node.type}, its rule {inferred}")
        # type rules hold from here on
        for node in (n for n in self.calls if n.op in ("state", "assign")):
            self._verify_state(node)
        if not self.outputs and not self.states:
            raise GraphError("[graph] expected at least one output")
        output_names = [name for name, _ in self.outputs]
        if len(set(output_names)) != len(output_names):
            raise GraphError(f"[graph] two outputs share a name: {output_names}")
        for name, node_id in self.outputs:
            if not 0 <= node_id < len(self.nodes):
                raise GraphError(f"[graph] output {name!r} names no node")
        return self

    def _verify_state(self, node: Node) -> None:
        if node.op == "state":
            if node.id not in self.initial or node.id not in self.keys:
                raise GraphError(f"[graph] {node.name} has nothing to start with")
            return
        held, value = node.inputs
        if self.nodes[held].op != "state":
            raise GraphError(f"[graph] {node.name} assigns to {self.nodes[held].name}, no state")
        if self.nodes[self.view_base(value)].op == "state":
            raise GraphError(
                f"[graph] {node.name} reads {self.nodes[value].name}, the memory of a state, which "
                "may get a next value before; try a copy by concat"
            )
        low, high = (self.nodes[held].attrs.get(name) for name in ("low", "high"))
        if isinstance(low, int) and isinstance(high, int):
            known = self.bounds[value]
            if not fits(known, (low, high)):
                raise GraphError(
                    f"[graph] expected a next value of {self.nodes[held].name} within its bounds "
                    f"{low}..{high}, got one known only to be within {known}; try vs.clip"
                )

    def __str__(self) -> str:
        lines = [str(node) for node in self.nodes]
        lines += [f"-> {name} = %{node_id}" for name, node_id in self.outputs]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the graph as plain data, without its arrays."""
        nodes = [
            {
                "id": n.id,
                "op": n.op,
                "inputs": list(n.inputs),
                "attrs": dict(n.attrs),
                "shape": list(n.type.shape),
                "dtype": n.type.dtype,
                "name": n.name,
            }
            for n in self.nodes
        ]
        return {"nodes": nodes, "outputs": [list(o) for o in self.outputs]}


def _verify_arrays(graph: Graph) -> None:
    """Check that exactly the leaves and states have arrays."""
    others = (*graph.backed_up_states, *graph.aliases.values())
    if others and not 0 <= min(others) <= max(others) < len(graph.nodes):
        raise GraphError(f"[graph] backed-up states or aliases {sorted(others)} are not all there")
    leaves, states = set[int](), set[int]()
    for node in graph.nodes:
        if node.inputs and node.op in ("input", "weight", "constant", "state"):
            raise GraphError(f"[graph] {node.name} reads values, though it is a leaf")
        if node.op == "state":
            states.add(node.id)
        elif node.op in ("weight", "constant"):
            leaves.add(node.id)
            held = graph.data.get(node.id)
            if held is None or held.shape != node.type.shape:
                raise GraphError(f"[graph] {node.name} has no data of shape {node.type.shape}")
            if held.dtype != numpy_dtype(node.type.dtype):
                raise GraphError(
                    f"[graph] {node.name} has data of {held.dtype}, not {node.type.dtype}"
                )
    if not graph.data.keys() <= leaves or not graph.initial.keys() <= states:
        raise GraphError("[graph] expected data of weights, constants and states alone")
    for node_id, array in graph.initial.items():
        type_ = graph.nodes[node_id].type
        if array.shape != type_.shape or array.dtype != numpy_dtype(type_.dtype):
            raise GraphError(
                f"[graph] {graph.nodes[node_id].name} starts with {array.dtype} of shape "
                f"{array.shape}, not {type_}"
            )


def readers_of(graph: Graph) -> list[list[int]]:
    """Return, for each node, the nodes that read it."""
    readers: list[list[int]] = [[] for _ in graph.nodes]
    for node in graph.nodes:
        for operand in dict.fromkeys(node.inputs):
            readers[operand].append(node.id)
    return readers


def topological_order(
    outputs: Sequence[Tensor], stop: Collection[Tensor] = frozenset()
) -> list[Tensor]:
    """Return the ancestors of outputs in topological order.

    Depth-first postorder without recursion, because graphs are deeper than Python's stack.

    Parameters
    ----------
    stop
        Tensors to exclude, with ancestors that only they need.
    """
    order: list[Tensor] = []
    done: set[Tensor] = set(stop)
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, expanded = stack.pop()
        if tensor in done:
            continue
        if expanded:
            done.add(tensor)
            order.append(tensor)
        else:
            stack.append((tensor, True))
            stack.extend((t, False) for t in reversed(tensor.inputs) if t not in done)
    return order
