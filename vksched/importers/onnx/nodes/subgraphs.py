"""Subgraphs: bodies of If, Loop and Scan, local functions, and the constants in all nodes.

main graph: Equal, If
                   |- then_branch: Conv, Constant (weights), If ...
                   `- else_branch: ...
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

from .elements import numpy_of
from .functions import function_key
from .topological_order import subgraphs

_LISTS = {"value_floats": ("floats", 4), "value_ints": ("ints", 8), "value_strings": ("strings", 8)}
_SINGLE = {"value_float": 4, "value_int": 8, "value_string": 8}
"""Attributes of Constant that are not tensors, with the bytes per element in numpy."""


@dataclass(frozen=True)
class Body:
    """A graph in an attribute of a node.

    Attributes
    ----------
    node
        The node's name, or its first result.
    attribute
        Name of the attribute, for instance then_branch.
    depth
        0 in the main graph.
    ops
        Number of nodes of each op.
    """

    node: str
    op: str
    attribute: str
    depth: int
    ops: Mapping[str, int]


@dataclass(frozen=True)
class LocalFunction:
    """A local function of the model; `calls` is the number of nodes in the file that call it."""

    name: str
    calls: int
    ops: Mapping[str, int]


def find_bodies(nodes: Iterable[NodeProto], depth: int = 0) -> Iterator[Body]:
    """Yield the subgraphs of nodes, each before its own subgraphs."""
    for node in nodes:
        name = str(node.name or next((o for o in node.output if o), ""))
        for attribute, graph in subgraphs(node):
            yield Body(name, op_name(node), attribute, depth, _ops(graph.node))
            yield from find_bodies(graph.node, depth + 1)


def find_functions(model: ModelProto) -> tuple[LocalFunction, ...]:
    """Return the functions of a model that are still called."""
    callers = (model.graph.node, *(f.node for f in model.functions))
    calls = Counter(function_key(node) for nodes in callers for node in all_nodes(nodes))
    return tuple(
        LocalFunction(_function_name(f), calls[function_key(f)], _ops(f.node))
        for f in model.functions
    )


def _function_name(function: FunctionProto) -> str:
    return f"{function.domain}.{function.name}" if function.domain else str(function.name)


def op_name(node: NodeProto) -> str:
    """Return an op's name for tables, prefixed by its domain unless that is the default."""
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _ops(nodes: Iterable[NodeProto]) -> dict[str, int]:
    return dict(Counter(map(op_name, nodes)).most_common())


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, including those of subgraphs."""
    for node in nodes:
        yield node
        for _, graph in subgraphs(node):
            yield from all_nodes(graph.node)


def count_embedded(model: ModelProto) -> tuple[int, int]:
    """Return the elements and bytes of all Constant nodes and of tensors in subgraphs.

    Equal constants count once, because they share one array.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in all_nodes(nodes):
            if node.op_type == "Constant" and not node.domain:
                found.update(_constant(node))
            for _, graph in subgraphs(node):
                for tensor in graph.initializer:
                    found.update(_tensor(tensor))
                for sparse in graph.sparse_initializer:
                    found.update(_tensor(sparse.values))
    return sum(n for n, _ in found.values()), sum(n for _, n in found.values())


def _constant(node: NodeProto) -> dict[bytes, tuple[int, int]]:
    """Return the size of a Constant, keyed by a digest of its content."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return _tensor(attribute.t)
        if attribute.name == "sparse_value":
            return _tensor(attribute.sparse_tensor.values)
        key = attribute.SerializeToString(deterministic=True)
        if attribute.name in _SINGLE:
            return {key: (1, _SINGLE[attribute.name])}
        if attribute.name in _LISTS:
            field, width = _LISTS[attribute.name]
            count = len(getattr(attribute, field))
            return {hashlib.blake2b(key).digest(): (count, count * width)}
    return {}


def _tensor(tensor: TensorProto) -> dict[bytes, tuple[int, int]]:
    kind = f"{tensor.data_type} {list(tensor.dims)}".encode()
    data = tensor.raw_data if tensor.HasField("raw_data") else _data(tensor)
    key = hashlib.blake2b(data, key=hashlib.blake2b(kind).digest()).digest()
    count = math.prod(tensor.dims)
    return {key: (count, count * numpy_of(tensor.data_type).itemsize)}


def _data(tensor: TensorProto) -> bytes:
    """Return the data of a tensor without raw data, without its name."""
    nameless = TensorProto()
    nameless.CopyFrom(tensor)
    nameless.ClearField("name")
    nameless.ClearField("doc_string")
    return bytes(nameless.SerializeToString(deterministic=True))
