"""Conversion of tensors to a frozen Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..common.errors import GraphError
from ..storage.lazy_array import as_array
from .early_writes import check_early_writes
from .graph import Graph, Node, topological_order
from .op import get_op, view_offset
from .tensor import Tensor, apply

Outputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


Updates = Mapping[Tensor, Tensor]
"""Next values of states."""


def build_graph(
    outputs: Outputs, updates: Updates | None = None
) -> tuple[Graph, dict[Tensor, int]]:
    """Build the graph that computes some outputs, and return the node id of each Tensor.

    Parameters
    ----------
    updates
        Next values of states.

    Names from the user must be unique; other nodes are numbered.

    Raises
    ------
    GraphError
        There is no output, a name is repeated, an updated tensor is not a state, or a state with
        pending rows has another update or other readers.
    ShapeError, DTypeError
        The type of a next value differs from that of its state.
    """
    named = _name_outputs(outputs)
    ends = [tensor for _, tensor in named] + (_assignments(updates) if updates else [])
    order = topological_order(ends)
    ids = {tensor: position for position, tensor in enumerate(order)}
    names = _unique_names(order)
    nodes = tuple(
        Node(ids[t], t.op, tuple(ids[i] for i in t.inputs), t.attrs, t.type, names[t])
        for t in order
    )
    held = {ids[t]: t.held for t in order if t.held is not None}
    keys: dict[int, object] = {ids[t]: t for t in order if t.held is not None}
    initial = {i: as_array(array) for i, array in held.items() if nodes[i].op == "state"}
    data = {i: array for i, array in held.items() if i not in initial}
    result = tuple((name, ids[t]) for name, t in named)
    backed_up = tuple(
        n.inputs[1] for n in nodes if n.op == "assign" and nodes[n.inputs[0]].attrs["backup"]
    )
    maps = (MappingProxyType(data), MappingProxyType(keys), MappingProxyType(initial))
    graph = Graph(nodes, result, *maps, backed_up)
    check_early_writes(graph.verify())
    return graph, ids


def _assignments(updates: Updates) -> list[Tensor]:
    if not isinstance(updates, Mapping):
        raise GraphError(f"[graph] expected updates as a dict of states, got {updates!r}")
    for held, value in updates.items():
        if not isinstance(held, Tensor) or held.op != "state":
            raise GraphError(f"[graph] expected a state to update, got {held!r}; try vs.state")
        if not isinstance(value, Tensor):
            raise GraphError(
                f"[graph] expected a Tensor as next value of {held.name!r}, got {value!r}"
            )
    return [assign(held, value) for held, value in updates.items()]


def _name_outputs(outputs: Outputs) -> list[tuple[str, Tensor]]:
    if isinstance(outputs, Tensor):
        named = [("output", outputs)]
    elif isinstance(outputs, Mapping):
        named = list(outputs.items())
    elif isinstance(outputs, Sequence):
        named = [(f"output_{i}", tensor) for i, tensor in enumerate(outputs)]
    else:
        raise GraphError(f"[graph] expected a Tensor, a sequence or a dict, got {outputs!r}")
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise GraphError(f"[graph] expected a Tensor as output {name!r}, got {type(tensor)}")
    return named


def _unique_names(order: Sequence[Tensor]) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {}
    used_names: set[str] = set()
    for tensor in order:
        if tensor.named:
            if tensor.name in used_names:
                more = ", or another name= for one of two optimizers"
                raise GraphError(
                    f"[graph] two tensors are named {tensor.name!r}; try another name"
                    + more * (tensor.op == "state")
                )
            used_names.add(tensor.name)
            names[tensor] = tensor.name
    counters: dict[str, int] = {}
    for tensor in order:
        if not tensor.named:
            name = tensor.name
            while name in used_names:
                counters[tensor.name] = counters.get(tensor.name, 0) + 1
                name = f"{tensor.name}_{counters[tensor.name]}"
            used_names.add(name)
            names[tensor] = name
    return names


def assign(held: Tensor, value: Tensor) -> Tensor:
    """Create the node that writes the next value of a state; used by `build_graph`.

    A next value that aliases another state is copied first, because that state may be updated too.
    """
    source = value
    while source.op != "state" and source.inputs:
        declared, types = get_op(source.op), tuple(t.type for t in source.inputs)
        if view_offset(declared, types, source.attrs) is None:
            break
        source = source.inputs[0]
    if source.op == "state":
        flat = apply("reshape", (value,), {"shape": (value.size,)})
        value = apply("reshape", (apply("concat", (flat,), {"axis": 0}),), {"shape": value.shape})
    node = apply("assign", (held, value))
    node.name = f"{held.name}.next"
    return node
