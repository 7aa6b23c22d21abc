"""Sort the nodes of a graph topologically, and find cycles.

ONNX requires sorted nodes. Files with unsorted nodes are sorted here: the meaning is unambiguous,
because each name has one producer. The sort is stable, and linear except for a heap.

    b = f(a)            a = g(x)
    a = g(x)     ->     b = f(a)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import onnx

from ....common.errors import ModelFormatError


def label(node: onnx.NodeProto) -> str:
    """Return a node's label for messages: its name, or its first result."""
    if node.name:
        return f"node {node.name!r} ({node.op_type})"
    first = next((o for o in node.output if o), "")
    return f"node of {first!r} ({node.op_type})" if first else f"node ({node.op_type})"


def subgraphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the graphs in a node's attributes, with the attribute names."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for graph in attribute.graphs:
            yield attribute.name, graph


def used_names(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node and its subgraphs read from the graph."""
    names = {name for name in node.input if name}
    for _, graph in subgraphs(node):
        inside = {i.name for i in graph.input} | {i.name for i in graph.initializer}
        inside |= {s.values.name for s in graph.sparse_initializer}
        wanted = {o.name for o in graph.output}
        for inner in graph.node:
            inside.update(inner.output)
            wanted |= used_names(inner)
        names |= wanted - inside
    return names


def order(
    nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int], where: str
) -> list[int] | None:
    """Return the positions of the nodes in topological order, or None if they are sorted.

    Parameters
    ----------
    producers
        The position of the node that produces each name.

    Raises
    ------
    ModelFormatError
        The nodes form a cycle.
    """
    needs = [{producers[name] for name in used_names(node) if name in producers} for node in nodes]
    if all(max(need, default=-1) < i for i, need in enumerate(needs)):
        return None
    users: list[list[int]] = [[] for _ in nodes]
    for user, need in enumerate(needs):
        for producer in need:
            users[producer].append(user)
    missing = [len(need) for need in needs]
    ready = [i for i, count in enumerate(missing) if not count]
    out: list[int] = []
    while ready:
        out.append(heapq.heappop(ready))
        for user in users[out[-1]]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(out) < len(nodes):
        cycle = _cycle(needs, next(i for i, count in enumerate(missing) if count), set(out))
        names = " -> ".join(label(nodes[i]) for i in [*cycle[:4], cycle[0]])
        raise ModelFormatError(
            f"[onnx] {where}{label(nodes[cycle[0]])}: expected nodes that do not wait for each "
            f"other, got a cycle of {len(cycle)}: {names}"
        )
    return out


def _cycle(needs: Sequence[set[int]], start: int, done: set[int]) -> list[int]:
    seen: dict[int, int] = {}
    at = start
    while at not in seen:
        seen[at] = len(seen)
        at = min(needs[at] - done)
    return list(seen)[seen[at] :][::-1]
