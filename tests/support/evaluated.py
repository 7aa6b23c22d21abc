"""Graphs evaluated node by node by the references of their ops: an oracle without plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.ops.creation.state import StatePiece


def evaluate(graph: Graph, feeds: Mapping[str, NDArray]) -> dict[int, NDArray]:
    """Return the value of each node."""
    values: dict[int, NDArray] = {}
    for node in graph.nodes:
        if node.op == "input":
            values[node.id] = feeds[node.name]
        elif node.id in graph.data:
            values[node.id] = graph.data[node.id]
        elif node.id in graph.initial:
            values[node.id] = graph.initial[node.id]
        else:
            operands = tuple(values[i] for i in node.inputs)
            values[node.id] = np.asarray(node.declaration.reference(operands, node.attrs))
    return values


def next_states(graph: Graph, values: Mapping[int, NDArray]) -> dict[Any, NDArray]:
    """Return for each state its next value, pieces put together."""
    pieces: dict[Any, list[tuple[int, int, NDArray]]] = {}
    for node in graph.nodes:
        if node.op != "assign":
            continue
        key = graph.keys[node.inputs[0]]
        if isinstance(key, StatePiece):
            found = (key.start, key.axis, values[node.id])
            pieces.setdefault(key.state, []).append(found)
        else:
            pieces[key] = [(0, 0, values[node.id])]
    out: dict[Any, NDArray] = {}
    for key, parts in pieces.items():
        parts.sort(key=lambda part: part[0])
        out[key] = (
            np.concatenate([p[2] for p in parts], parts[0][1]) if len(parts) > 1 else parts[0][2]
        )
    return out
