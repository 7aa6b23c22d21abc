"""Parts as plain data, and parts of plain data, to be carried out on another computer.

    Part --part_document--> JSON --> part_of(weight=...) --> the same Part, verified

A weight is its type and the SHA-256 of its own bytes, as the graph holds it: blocks of a file stay
blocks. Who reads the document is given it by that hash. A state is a name that both ends know it
by; it has no value there until one is written. The document is a stranger's: sizes and types are
checked against a schema before anything is made of it, and the part is verified.

Complexity: O(nodes that the part has to do with). Examples: tests/plan/test_part_documents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import PlanError
from ...graph import Graph, Node
from ...ops.core.late import Held
from ...trace.schema import CARRIED, NODE, Either, Row, check
from ...types import NDArray, TensorType, numpy_dtype
from ..check.parts import verify_part
from ..make.parts import blank
from ..parts import Part, Send, Steps, Take
from .graphs import NONSENSE, digest_of, node_document, node_of
from .plans import carried_document, carried_of, machine_of

MOST_NODES = 1 << 22
"""Of a graph that a document tells of."""
SEND = Row((int, int, str))
TAKE = Row((int, str, [int]))
PART = {
    **CARRIED,
    "host": str,
    "size": int,
    "nodes": [{**NODE, "id": int}],
    "outputs": [Row((str, int))],
    "kept": [int],
    "weights": [{"node": int, "hash": str}],
    "states": [{"node": int, "key": str}],
    "numbers": [int],
    "steps": [Row((int, [Either((SEND, TAKE))]))],
    "inputs": [int],
    "results": int,
}
"""size: how many nodes the whole graph has; those that are not among "nodes" are blank. steps:
position, and value, split and host of what is sent, or value, host and what is shown of what is
taken. The rest: as in `Part` and `Graph`.
"""

WeightOf = Callable[[int, str, TensorType], Held]
"""Returns the weight of a node, which has this hash and type."""


def part_document(part: Part, state_key: Callable[[object], str]) -> dict[str, Any]:
    """Returns a part as `PART` says. state_key: the name of a state of one of `Graph.keys`."""
    graph = part.plan.graph
    there = (node for node in graph.nodes if node != blank(node.id))
    return {
        **carried_document(part.plan),
        "host": part.host,
        "size": len(graph.nodes),
        "nodes": [{**node_document(node), "id": node.id} for node in there],
        "outputs": [list(pair) for pair in graph.outputs],
        "kept": list(graph.kept),
        "weights": [{"node": n, "hash": digest_of(held)} for n, held in graph.data.items()],
        "states": [{"node": n, "key": state_key(graph.keys[n])} for n in graph.initial],
        "numbers": list(part.numbers),
        "steps": [[at, list(map(_step_document, steps))] for at, steps in part.steps.items()],
        "inputs": list(part.inputs),
        "results": part.results,
    }


def _step_document(step: Send | Take) -> list[object]:
    if isinstance(step, Send):
        return [step.value, step.split, step.host]
    return [step.value, step.host, list(step.shown)]


def part_of(document: object, weight: WeightOf) -> Part:
    """Returns a part of its document, verified. Weights that two parts share by their hash have the
    same key in both; the key of a state is its name.

    Raises:
        PlanError: it is none, or breaks a promise; the text says why. What `weight` raises.
    """
    try:
        check(document, PART, "the part")
        assert isinstance(document, Mapping)
        nodes = _nodes_of(document)
        types = {held["node"]: nodes[held["node"]].type for held in document["weights"]}
        initial = {state["node"]: _nothing(nodes[state["node"]]) for state in document["states"]}
    except NONSENSE as error:
        raise _unreadable(error) from error
    hashes = {held["node"]: held["hash"] for held in document["weights"]}
    data = {node: weight(node, digest, types[node]) for node, digest in hashes.items()}
    keys: dict[int, object] = {node: (digest, types[node]) for node, digest in hashes.items()}
    keys.update((state["node"], state["key"]) for state in document["states"])
    try:
        graph = Graph(
            nodes,
            tuple((name, node) for name, node in document["outputs"]),
            MappingProxyType(data),
            MappingProxyType(keys),
            MappingProxyType(initial),
            tuple(document["kept"]),
        ).verify()
        return verify_part(
            Part(
                document["host"],
                carried_of(graph, machine_of(document), document),
                tuple(document["numbers"]),
                _steps_of(document),
                tuple(document["inputs"]),
                document["results"],
            )
        )
    except NONSENSE as error:
        raise _unreadable(error) from error


def _nodes_of(document: Mapping[str, Any]) -> tuple[Node, ...]:
    size = document["size"]
    if not 0 <= size <= MOST_NODES:
        raise PlanError(f"expected at most {MOST_NODES} nodes, got {size}")
    there = {given["id"]: given for given in document["nodes"]}
    if len(there) != len(document["nodes"]) or not there.keys() <= set(range(size)):
        raise PlanError(f"expected ids from 0 to {size - 1}, each once")
    return tuple(node_of(at, there[at]) if at in there else blank(at) for at in range(size))


def _nothing(node: Node) -> NDArray:
    """Returns what a state has where none lives yet."""
    return np.broadcast_to(np.zeros((), numpy_dtype(node.type.dtype)), node.type.shape)


def _steps_of(document: Mapping[str, Any]) -> Steps:
    steps = {at: tuple(map(_step_of, each)) for at, each in document["steps"]}
    if len(steps) != len(document["steps"]):
        raise PlanError("expected each position of steps once")
    return MappingProxyType(steps)


def _step_of(given: list[Any]) -> Send | Take:
    first, second, third = given
    return (
        Send(first, second, third) if isinstance(third, str) else Take(first, second, tuple(third))
    )


def _unreadable(error: BaseException) -> PlanError:
    return PlanError(f"[parts] the part cannot be made of its document: {error}")
