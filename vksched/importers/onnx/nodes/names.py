"""Names: what nodes read and what holds the values between stages."""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, NodeProto

from .topological_order import subgraphs as named_subgraphs
from .values import Value

RANDOM = frozenset(
    (
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)
"""Ops that may give other results in every run."""
HANDED_ON = frozenset(
    (
        "Identity",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
    )
)
"""Ops whose rules hand values on as they are: a weight stays the one that it is."""


JOINT = "%"
"""Stands in names that lowering makes, between that of a value and what is added to it."""


def item_slot(slot: str, index: int) -> str:
    """Return the slot of an item of a sequence."""
    return f"{slot}{JOINT}[{index}]"


def joined_names(graph: GraphProto) -> frozenset[str]:
    """Return the names of values of a graph that look as if lowering had made them."""
    out = {i.name for i in (*graph.input, *graph.initializer) if JOINT in i.name}
    for node in graph.node:
        out.update(name for name in node.output if JOINT in name)
        for inner in subgraphs(node):
            out |= joined_names(inner)
    return frozenset(out)


def slots_of(value: Value) -> tuple[str, ...]:
    """Return the slots that a value is in: of a sequence those of its items."""
    if value.items is not None:
        return tuple(slot for item in value.items for slot in slots_of(item))
    return (value.slot,) if value.slot is not None else ()


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """Return the graphs among a node's attributes."""
    return [graph for _, graph in named_subgraphs(node)]


def has_subgraphs(node: NodeProto) -> bool:
    """Return whether a node holds graphs: If, Loop, Scan, SequenceMap."""
    return any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)


def free_names(node: NodeProto) -> tuple[str, ...]:
    """Returns what the subgraphs of a node read of the graph around it."""
    out: dict[str, None] = {}
    for graph in subgraphs(node):
        inside = {i.name for i in graph.input} | {i.name for i in graph.initializer}
        for inner in graph.node:
            out.update(dict.fromkeys(n for n in names_read(inner) if n not in inside))
            inside.update(inner.output)
        out.update(dict.fromkeys(o.name for o in graph.output if o.name not in inside))
    return tuple(out)


def names_read(node: NodeProto) -> tuple[str, ...]:
    """Return all that a node reads, its subgraphs too."""
    return (*(name for name in node.input if name), *free_names(node))
