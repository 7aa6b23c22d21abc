"""Splits: which nodes are submitted together, in which order, what crosses, and where the host must
wait.

Problem: few submissions and waits, but early starts. Method: the crossing depth of a node is the
largest number of crossings on a path to it. Nodes of one device and one depth form a split, which
is cyclefree by construction; within it the ancestors of what crosses go first, as a split of their
own, so that the other device can start. A split that takes its device too long is cut in parts. The
splits stand in the order in which what they wait for is done, by rough estimates.

    gpu:0   a0 -> a1 ----------> a4        depth 0: {a0, a1} early, {a2} late     depth 2: {a4}
             \\-> a2     \\        ^
    gpu:1                 b3 -----/         depth 1: {b3}

Complexity: O(edges + splits * devices). Examples: tests/test_plan.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..graph import Graph
from .plan import HOST, Placement
from .support import Support

SUBMISSION_S = 0.5
"""Estimated seconds of one submission: drivers kill one after about two; estimates are rough."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A split before memory is known. entering: (value, source split or HOST). leaving: values."""

    device: int
    nodes: tuple[int, ...]
    entering: tuple[tuple[int, int], ...]
    leaving: tuple[int, ...]
    waits: tuple[int, ...]


def value_of(graph: Graph, operand: int, same_device: bool) -> int:
    """Returns which value an operand stands for: itself, or for a view what it views.

    A part of a computed tensor crosses on its own; everything else stands for its root.
    """
    root = graph.roots[operand]
    if same_device or root == operand or graph.nodes[root].declaration.leaf:
        return root
    if graph.words[root] == graph.words[operand]:
        return root
    return operand


def split_graph(
    support: Support, placements: Sequence[Placement]
) -> tuple[tuple[Outline, ...], tuple[int, ...]]:
    """Returns the splits in submission order and the splits to wait for at the end."""
    graph, roots = support.graph, support.graph.roots
    device = {n.id: placements[n.id].device for n in support.computed}
    groups = _by_ready_time(support, device, _group(support, device))
    of_node = {n: position for position, nodes in enumerate(groups) for n in nodes}
    entering: list[dict[int, int]] = [{} for _ in groups]
    leaving: list[dict[int, None]] = [{} for _ in groups]
    present: set[tuple[int, int]] = set()
    for position, nodes in enumerate(groups):
        here = device[nodes[0]]
        for node_id in nodes:
            for operand in graph.nodes[node_id].inputs:
                root = roots[operand]
                if root in graph.data or device.get(root) == here:
                    continue
                value = value_of(graph, operand, False)
                if (here, value) in present:
                    continue
                present.add((here, value))
                if root in device:
                    entering[position][value] = of_node[root]
                    leaving[of_node[root]][value] = None
                else:
                    entering[position][value] = HOST
    for _, output in graph.outputs:
        root = graph.root(output)
        if root in of_node:
            leaving[of_node[root]][value_of(graph, output, False)] = None
    waits = _find_waits(
        [device[nodes[0]] for nodes in groups], [e.values() for e in entering], leaving
    )
    outlines = tuple(
        Outline(device[nodes[0]], nodes, tuple(entering[i].items()), tuple(leaving[i]), waits[i])
        for i, nodes in enumerate(groups)
    )
    return outlines, waits[-1]


def _group(support: Support, device: dict[int, int]) -> list[tuple[int, ...]]:
    """Returns the nodes of each split, in the order of submission, each in order of execution."""
    depth: dict[int, int] = {}
    for node in support.computed:
        here, deepest = device[node.id], 0
        for source in support.operands[node.id]:
            if source in depth:
                found = depth[source] + (device[source] != here)
                deepest = max(deepest, found)
        depth[node.id] = deepest
    early: set[int] = set()
    for node in reversed(support.computed):
        here, own = device[node.id], depth[node.id]
        for reader in support.readers[node.id]:
            if device[reader] != here or (reader in early and depth[reader] == own):
                early.add(node.id)
                break
    buckets: dict[tuple[int, bool, int], list[int]] = {}
    for node in support.computed:
        key = (depth[node.id], node.id not in early, device[node.id])
        buckets.setdefault(key, []).append(node.id)
    return [
        part
        for key in sorted(buckets)
        for part in _cut(support, key[2], _by_level(support, buckets[key]))
    ]


def _cut(support: Support, device: int, nodes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Parts a split that would take its device too long; no wait stands between the parts."""
    if support.machine.devices[device].kind == "cpu":
        return [nodes]
    parts: list[list[int]] = [[]]
    total_s = 0.0
    for node_id in nodes:
        seconds = support.node_seconds(node_id, device)
        if parts[-1] and total_s + seconds > SUBMISSION_S:
            parts.append([])
            total_s = 0.0
        parts[-1].append(node_id)
        total_s += seconds
    return [tuple(part) for part in parts]


def _by_ready_time(
    support: Support, device: dict[int, int], groups: list[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Orders the splits by when what they wait for is done, as estimated; each device keeps its
    own order.

    The host waits in this order: what comes late must not hold back what could start at once.
    """
    of_node = {n: position for position, nodes in enumerate(groups) for n in nodes}
    sources = [
        {of_node[p] for n in nodes for p in support.operands[n] if p in of_node} - {position}
        for position, nodes in enumerate(groups)
    ]
    queues: dict[int, deque[int]] = {}
    for position, nodes in enumerate(groups):
        queues.setdefault(device[nodes[0]], deque()).append(position)
    done_s: dict[int, float] = {}
    free_s = dict.fromkeys(queues, 0.0)
    order: list[int] = []
    while len(order) < len(groups):
        ready = [
            (max((done_s[s] for s in sources[queue[0]]), default=0.0), queue[0], here)
            for here, queue in queues.items()
            if queue and sources[queue[0]] <= done_s.keys()
        ]
        ready_s, position, here = min(ready)
        queues[here].popleft()
        seconds = support.split_seconds(groups[position], here)
        free_s[here] = max(free_s[here], ready_s) + seconds
        done_s[position] = free_s[here]
        order.append(position)
    return [groups[position] for position in order]


def _by_level(support: Support, nodes: list[int]) -> tuple[int, ...]:
    """Orders nodes by longest path within the split: independent ones stand together."""
    level: dict[int, int] = {}
    for node_id in nodes:
        inside = [level[p] for p in support.operands[node_id] if p in level]
        level[node_id] = max(inside, default=-1) + 1
    return tuple(sorted(nodes, key=lambda n: (level[n], n)))


def _find_waits(
    devices: Sequence[int],
    sources: Sequence[Iterable[int]],
    leaving: Sequence[dict[int, None]],
) -> list[tuple[int, ...]]:
    """Returns for each split, and last for the end, the splits that the host must still wait for.

    A wait covers all earlier splits of its device: queues run in order.
    """
    known = dict.fromkeys(devices, -1)
    out: list[tuple[int, ...]] = []

    def need(splits: Iterable[int]) -> tuple[int, ...]:
        latest: dict[int, int] = {}
        for split in splits:
            if split != HOST and split > known[devices[split]]:
                latest[devices[split]] = max(split, latest.get(devices[split], -1))
        known.update(latest)
        return tuple(sorted(latest.values()))

    for needed in sources:
        out.append(need(needed))
    out.append(need(i for i, values in enumerate(leaving) if values))
    return out
