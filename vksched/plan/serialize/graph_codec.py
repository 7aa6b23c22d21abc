"""Graphs as plain data, without their weights, and graphs from plain data for planning.

Problem: a trace should hold the inputs of a plan, but neither gigabytes nor private weights.
Method: a weight is stored as its type, a hash of its bytes and, if plans need them, the bounds of
its integers. A decoded graph has weights of equal types and bounds without the true values. They
take no memory, unless bounds differ. Results computed with them are meaningless.

Complexity: O(nodes); a weight is hashed once. Examples: tests/plan/test_serialize.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import ops as ops
from ...common.dtypes import INT64, NDArray, TensorType, numpy_dtype
from ...common.errors import DECODE_ERRORS, PlanError, UnsupportedOp
from ...common.op_loaders import find_op_loader
from ...common.serialize import float_of, plain
from ...ir.attrs import Attrs, AttrValue
from ...ir.graph import FEW, Graph, Node
from ...ir.op import all_ops, get_op
from ...ir.value_range import bounds_of_data
from ...storage.content_hash import hash_of
from ...storage.lazy_array import ArrayLike, as_array

MAX_BYTES = 1 << 30
"""Maximum bytes of the arrays with differing bounds in a decoded graph."""


def encode_graph(graph: Graph) -> dict[str, Any]:
    """Return a graph in the form of `trace.format.GraphDocument`."""
    return {
        "nodes": list(map(encode_node, graph.nodes)),
        "outputs": [list(pair) for pair in graph.outputs],
        "backed_up_states": list(graph.backed_up_states),
        "aliases": dict(graph.aliases),
        "weights": [_held(graph.nodes[n], array) for n, array in graph.data.items()],
        "states": [{"node": n} for n in graph.initial],
    }


def encode_node(node: Node) -> dict[str, Any]:
    """Return a node in the form of `trace.format.NodeDocument`."""
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "attrs": {name: plain(value) for name, value in node.attrs.items()},
        "shape": list(node.type.shape),
        "dtype": node.type.dtype,
    }


def _held(node: Node, array: ArrayLike) -> dict[str, Any]:
    """Return the stored description of a weight or constant."""
    out: dict[str, Any] = {"node": node.id, "hash": hash_of(array)}
    if node.type.dtype == INT64 or node.type.size <= FEW:
        found = bounds_of_data(as_array(array))
        out["bounds"] = None if found is None else [int(each) for each in found]
    return out


# -- back ------------------------------------------------------------------------------------------


def decode_graph(document: Mapping[str, Any]) -> Graph:
    """Return a graph for planning, with unknown weights.

    Raises
    ------
    PlanError
        The document is no graph; the text gives the reason.
    """
    try:
        nodes = tuple(decode_node(at, item, True) for at, item in enumerate(document["nodes"]))
        budget = [MAX_BYTES]
        data = {h["node"]: _array(nodes[h["node"]], h, budget) for h in document["weights"]}
        initial = {h["node"]: _array(nodes[h["node"]], h, budget) for h in document["states"]}
        graph = Graph(
            nodes,
            tuple((name, node) for name, node in document["outputs"]),
            data,
            {node: object() for node in (*data, *initial)},
            initial,
            tuple(document["backed_up_states"]),
            document["aliases"],
        )
        return graph.verify()
    except DECODE_ERRORS as error:
        raise PlanError(f"[trace] the graph of a tape cannot be made again: {error}") from error


def decode_node(at: int, data: Mapping[str, Any], onnx_ops: bool) -> Node:
    """Return a node from its document.

    onnx_ops: True to accept ops of ONNX files that only the CPU runs. They are declared on first
    use, because files may add new ones.

    Raises
    ------
    UnsupportedOp
        The node has such an op, and onnx_ops is False.
    """
    attrs = Attrs({name: _attr(value) for name, value in data["attrs"].items()})
    if onnx_ops:
        _declare(data["op"])
    elif find_op_loader(data["op"]) or get_op(data["op"]).opaque:
        raise UnsupportedOp(
            f"expected ops of vksched, got {data['op']}, which the onnx package computes: it can "
            "neither be limited nor ended; try `vksched worker --onnx-ops` there, if all callers "
            "may do that"
        )
    type_ = TensorType(tuple(data["shape"]), data["dtype"])
    return Node(at, data["op"], tuple(data["inputs"]), attrs, type_, data["name"])


def _declare(op: str) -> None:
    """Declare an op of an importer, as the importer does on first use."""
    loader = find_op_loader(op)
    if op not in all_ops() and loader is not None:
        loader(op)


def _attr(value: object) -> AttrValue:
    number = float_of(value)
    if number is not None:
        return number
    if isinstance(value, list):
        return tuple(map(_attr, value))
    return value  # type: ignore[return-value]


def _array(node: Node, held: Mapping[str, Any], budget: list[int]) -> NDArray:
    """Return an array with a node's type and bounds."""
    dtype, shape = numpy_dtype(node.type.dtype), node.type.shape
    low, high = held.get("bounds") or (0, 0)
    if low == high or node.type.size < 2:
        return np.broadcast_to(np.array(low, dtype), shape)
    budget[0] -= node.type.host_bytes
    if budget[0] < 0:
        raise ValueError(f"expected whole numbers of at most {MAX_BYTES} bytes")
    array = np.full(shape, low, dtype)
    array.reshape(-1)[-1] = high
    return array
