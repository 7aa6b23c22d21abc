"""Graph document: a rewritten graph as plain data that refers to leaves by name.

    graph, leaves --encode_graph--> fields: nodes, types, references    constants: bytes
    document, leaves --decode_graph--> the graph with the leaves of this process

Leaves that passes created are constants: their bytes are part of the document. All other leaves
belong to the model or the source graph, and are looked up by reference. Complexity: O(nodes).
Examples: tests/engine/test_cached_graphs.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..common.dtypes import NDArray, TensorType, numpy_dtype
from ..common.schema import Whole, check, record
from ..ir.attrs import Attrs, AttrValue
from ..ir.graph import Graph, Node
from ..storage.lazy_array import ArrayLike, as_array

MAX_BYTES = 8 << 20
"""The maximum bytes of constants of a document."""
ALIGN = 64
"""The alignment of constants in bytes."""
CONSTANT, STATE, WEIGHT = "constant", "state", "weight"
"""The kinds of leaves."""
GRAPH = record(
    key=str,
    code=list[tuple[str, Whole, Whole]],
    plan=dict[str, Any] | None,
    nodes=list[tuple[str, tuple[Whole, ...], Whole, Whole, str]],
    attrs=list[dict[str, Any]],
    types=list[tuple[tuple[Whole, ...], str]],
    leaves=list[tuple[Whole, str, Whole | list[Any]]],
    outputs=tuple[tuple[str, Whole], ...],
    backed_up_states=tuple[Whole, ...],
    aliases=dict[str, Whole],
)
"""The fields of a document. `key` is the key of the plan request. A node is its op, inputs, indices
of attributes and type, and name. A leaf is its node, kind, and the reference or offset of its data.
The rest is as in `Graph`.
"""


class Leaf(NamedTuple):
    """A weight, a constant or a state of this process. key: its identity; see `Graph.keys`."""

    type: TensorType
    held: ArrayLike | None
    key: object


class LeafTable(Protocol):
    """The leaves that a cached graph shares with this process."""

    def references(self) -> Mapping[object, Any]:
        """Return the reference of each leaf by its key, as plain data."""

    def leaf(self, kind: str, reference: Any) -> Leaf:
        """Return a leaf; raise an exception if there is none."""


class SourceLeaves:
    """The leaves of a source graph; a reference is a node id."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def references(self) -> Mapping[object, int]:
        return {key: node_id for node_id, key in self._graph.keys.items()}

    def leaf(self, kind: str, reference: Any) -> Leaf:
        graph = self._graph
        held = graph.initial if kind == STATE else graph.data
        return Leaf(graph.nodes[reference].type, held[reference], graph.keys[reference])


@dataclass(frozen=True)
class Document:
    """A graph as plain data, and the concatenated bytes of its constants."""

    fields: Mapping[str, Any]
    constants: bytes | memoryview


def bytes_of(document: Document) -> bytes:
    """Return the content of a file: a digest, a line of JSON and the constants."""
    text = json.dumps(document.fields, separators=(",", ":")).encode()
    before = len(digest_of(b"")) + len(text) + 2  # two newlines
    text += b" " * (-before % ALIGN)
    content = b"".join([text, b"\n", document.constants])
    return b"\n".join([digest_of(content), content])


def document_of(content: bytes) -> Document:
    """Return the document of a file; raise one of DECODE_ERRORS if the file is invalid."""
    whole, size = memoryview(content), len(digest_of(b""))
    if content[: size + 1] != digest_of(whole[size + 1 :]) + b"\n":
        raise ValueError("another digest")
    end = content.index(b"\n", size + 1)
    data = json.loads(content[size + 1 : end])  # attributes may be infinite
    return Document(check(data, GRAPH, "the graph"), whole[end + 1 :])


def digest_of(content: bytes | memoryview) -> bytes:
    """Return the digest of the content of a file."""
    return hashlib.sha256(content).hexdigest().encode()


def encode_graph(graph: Graph, leaves: LeafTable) -> Document | None:
    """Return the document of a graph; None if it has too many constants or leaves of others."""
    known = leaves.references()
    attrs: dict[Attrs, int] = {}
    types: dict[TensorType, int] = {}
    rows: list[tuple[int, str, Any]] = []
    constants: list[bytes] = []
    used = 0
    for node_id, key in graph.keys.items():
        op = graph.nodes[node_id].op
        if key in known:
            rows.append((node_id, STATE if op == STATE else WEIGHT, known[key]))
        elif op == CONSTANT:
            size = graph.data[node_id].nbytes
            if used + size > MAX_BYTES:
                return None
            rows.append((node_id, CONSTANT, used))
            constants.append(np.ascontiguousarray(as_array(graph.data[node_id])).tobytes())
            constants.append(bytes(-size % ALIGN))
            used += size + len(constants[-1])
        else:
            return None
    nodes = [
        (
            n.op,
            n.inputs,
            attrs.setdefault(n.attrs, len(attrs)),
            types.setdefault(n.type, len(types)),
            n.name,
        )
        for n in graph.nodes
    ]
    fields = {
        "nodes": nodes,
        "attrs": [dict(each) for each in attrs],
        "types": [(each.shape, each.dtype) for each in types],
        "leaves": rows,
        "outputs": graph.outputs,
        "backed_up_states": graph.backed_up_states,
        "aliases": dict(graph.aliases),
    }
    return Document(fields, b"".join(constants))


def decode_graph(document: Document, leaves: LeafTable) -> Graph:
    """Return the graph of a document.

    Raises
    ------
    DECODE_ERRORS
        One of these exceptions, if the document does not fit the leaves.
    """
    fields = document.fields
    attrs = [Attrs({k: _attr(v) for k, v in each.items()}) for each in fields["attrs"]]
    types = [TensorType(shape, dtype) for shape, dtype in fields["types"]]
    nodes = tuple(
        [
            Node(at, op, inputs, attrs[attr], types[kind], name)
            for at, (op, inputs, attr, kind, name) in enumerate(fields["nodes"])
        ]
    )
    data: dict[int, ArrayLike] = {}
    keys: dict[int, object] = {}
    initial: dict[int, NDArray] = {}
    for node_id, kind, reference in fields["leaves"]:
        expected = nodes[node_id].type
        if kind == CONSTANT:
            data[node_id] = _array_of(document.constants, reference, expected)
            keys[node_id] = object()
            continue
        leaf = leaves.leaf(kind, reference)
        if leaf.type != expected or leaf.held is None:
            raise ValueError(f"{nodes[node_id].name}: expected {expected}, got {leaf.type}")
        keys[node_id] = leaf.key
        if kind == STATE:
            initial[node_id] = as_array(leaf.held)
        else:
            data[node_id] = leaf.held
    maps = (MappingProxyType(data), MappingProxyType(keys), MappingProxyType(initial))
    outputs, backed_up = fields["outputs"], fields["backed_up_states"]
    return Graph(nodes, outputs, *maps, backed_up, MappingProxyType(fields["aliases"])).verify()


def _attr(value: Any) -> AttrValue:
    return tuple(map(_attr, value)) if isinstance(value, list) else value


def _array_of(constants: bytes | memoryview, start: int, expected: TensorType) -> NDArray:
    flat = np.frombuffer(constants, numpy_dtype(expected.dtype), expected.size, start)
    return flat.reshape(expected.shape)  # read-only, like all constants
