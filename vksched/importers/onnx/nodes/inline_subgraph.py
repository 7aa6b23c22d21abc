"""Inlining: copy the nodes of a subgraph or function into the enclosing graph.

Names defined in the body get a prefix, its inputs get the names of the arguments, and captured
names of the enclosing graph do not change. The prefix is the name of a result of the replaced node,
which is unique in its graph, so names of two copies never collide.

    y = If(c) { a = Neg(x); b = Abs(a) }    ->    y%a = Neg(x); y%b = Abs(y%a); y = Identity(y%b)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto
from onnx.helper import make_node

from .values import Value


@dataclass(frozen=True)
class Copy:
    """A body inlined into the enclosing graph.

    Attributes
    ----------
    env
        Initializers of the body.
    outputs
        Names of its outputs, by position.
    """

    nodes: list[NodeProto]
    env: dict[str, Value]
    outputs: list[str]


def copy_body(
    nodes: Iterable[NodeProto],
    outputs: Sequence[str],
    prefix: str,
    arguments: Mapping[str, str],
    initializers: Mapping[str, Value] | None = None,
) -> Copy:
    """Return a copy of a body with new names.

    Parameters
    ----------
    arguments
        For each input of the body, a name of the enclosing graph, or "" if it is omitted.
    """
    names = dict(arguments)
    env: dict[str, Value] = {}
    for name, value in (initializers or {}).items():
        if name not in arguments:
            names[name] = prefix + name
            env[prefix + name] = value
    out = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = prefix + (node.name or node.op_type)
        rename_inputs(copy, names)
        names.update((name, prefix + name) for name in node.output if name)
        copy.output[:] = [names[name] if name else "" for name in node.output]
        out.append(copy)
    return Copy(out, env, [names.get(name, name) for name in outputs])


def rename_inputs(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename the values that a node and its subgraphs read from the enclosing graph."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _rename_captured(attribute.g, names)
        for graph in attribute.graphs:
            _rename_captured(graph, names)


def _rename_captured(graph: GraphProto, names: Mapping[str, str]) -> None:
    inside = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    inside |= {_sparse_name(s) for s in graph.sparse_initializer}
    left = {old: new for old, new in names.items() if old not in inside}
    for node in graph.node:
        rename_inputs(node, left)
        for name in node.output:
            left.pop(name, None)
    for output in graph.output:
        output.name = left.get(output.name, output.name)


def _sparse_name(sparse: SparseTensorProto) -> str:
    return str(sparse.values.name)


def hand_over(sources: Sequence[str], targets: Sequence[str]) -> list[NodeProto]:
    """Return Identity nodes that assign values to names of the enclosing graph."""
    pairs = zip(sources, targets, strict=False)
    return [make_node("Identity", [source], [target]) for source, target in pairs if target]


def node_count(nodes: Iterable[NodeProto]) -> int:
    """Return the number of nodes, including those of subgraphs."""
    count = 0
    for node in nodes:
        count += 1
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                count += node_count(attribute.g.node)
    return count
