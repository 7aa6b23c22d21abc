"""Stage assignment: find the pipeline stage and the phase of each node.

    encoder.0.h             stage encoder.0, F
    loss                    the last stage among its operands, F
    encoder.0.backward.h    stage encoder.0, B; if B is divided, W if only gradients of weights read
                            it, else I

Nodes that depend only on parameters, or on summed gradients, have no stage. Complexity: O(edges +
names * stages). Examples: tests/parallel/test_arrange.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...common.errors import PlanError
from ...ir.graph import Graph, Node, readers_of
from ..config.match_sections import covers, is_backward
from .schedule_types import BACKWARD, FORWARD, INPUTS, WEIGHTS

MOVES = ("transpose", "reshape", "slice", "concat", "expand", "cast")
"""Ops that only rearrange a gradient before the gradient of a weight is computed from it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The stage of a node, and its phase: F or B."""

    stage: int
    phase: str


def find_places(graph: Graph, stages: Sequence[str], batched: Collection[int]) -> dict[int, Place]:
    """Return the stage and phase of each node that is computed once per microbatch.

    Raises
    ------
    PlanError
        A stage reads a later one.
    """
    out: dict[int, Place] = {}
    named = {
        node.id: found
        for node in graph.nodes
        if node.id in batched and (found := _stage_of(node, stages)) is not None
    }
    waiting: list[Node] = []
    for node in graph.nodes:
        if node.id not in batched or node.declaration.leaf:
            continue
        before = [out[i] for i in node.inputs if i in out]
        if node.id in named:
            out[node.id] = Place(named[node.id], BACKWARD if is_backward(node.name) else FORWARD)
        elif before:
            out[node.id] = _after(before, node)
        else:
            waiting.append(node)
    readers = readers_of(graph)
    for node in reversed(waiting):
        known = [out[reader] for reader in readers[node.id] if reader in out]
        first = min(known, key=lambda p: (p.phase == BACKWARD, p.stage), default=None)
        out[node.id] = first or Place(0, FORWARD)
    _check(graph, out, stages)
    return out


def _stage_of(node: Node, stages: Sequence[str]) -> int | None:
    found = [i for i, stage in enumerate(stages) if covers(stage, node.name)]
    return max(found, key=lambda i: len(stages[i])) if found else None


def _after(before: Sequence[Place], node: Node) -> Place:
    """Return the place of a node without a signal: that of its last operand."""
    backward = [place for place in before if place.phase == BACKWARD]
    if backward:
        return Place(min(place.stage for place in backward), BACKWARD)
    stage = max(place.stage for place in before)
    return Place(stage, BACKWARD if is_backward(node.name) else FORWARD)


def _check(graph: Graph, places: dict[int, Place], stages: Sequence[str]) -> None:
    for node in graph.nodes:
        place = places.get(node.id)
        for operand in node.inputs if place else ():
            other = places.get(operand)
            if other is None or place is None or other.phase != place.phase:
                continue
            late = other.stage > place.stage
            if other.stage != place.stage and late == (place.phase == FORWARD):
                read = graph.nodes[operand].name
                raise PlanError(
                    f"[config] pipeline: expected stages that read those before them, got "
                    f"{node.name} of {stages[place.stage]}, which reads {read} of "
                    f"{stages[other.stage]}; try another order of stages"
                )


def find_phases(
    graph: Graph, places: dict[int, Place], added_up: Collection[int]
) -> dict[int, Place]:
    """Return the places with B divided into I and W. added_up: nodes whose results are partial
    gradients of a weight.
    """
    readers = readers_of(graph)
    late: set[int] = set()
    for node in reversed(graph.nodes):
        reads = readers[node.id]
        moves = node.op in MOVES and bool(reads) and late.issuperset(reads)
        if node.id in places and (node.id in added_up or moves):
            late.add(node.id)
    return {
        n: Place(p.stage, WEIGHTS if n in late else INPUTS) if p.phase == BACKWARD else p
        for n, p in places.items()
    }
