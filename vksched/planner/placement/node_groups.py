"""Node groups: coarsen a graph into groups of nodes that are placed as one.

Problem: a schedule of single nodes takes long to find, and scatters small ops over devices whose
submissions cost more than they save. Method: a node joins the node group that computes all of its
operands, as long as the group stays small; then a group joins its only reader. Neither creates a
cycle: all paths into the node, or all paths out of the group, end in the other. If many groups are
left, neighbours in topological order are merged, which creates no cycle either.

    x -> a -> b -> c        {a, b, c} --> {f}        {d, e} is not merged: it is large enough
          \\-> d -> e -> f           \\-> {d, e} -/     to be worth a device of its own

Only nodes with the same candidate devices are grouped. An unpinned state is in the node group of
its first reader, and its later readers come after that one. Complexity: O(edges). Examples:
tests/planner/test_select.py, tests/planner/test_state_placement.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...plan.costs.op_support import OpSupport

MOST = 256
"""Maximum number of node groups, beyond which neighbours are merged."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are placed as one, states included; `candidate_devices` can run all of them."""

    nodes: tuple[int, ...]
    candidate_devices: tuple[int, ...]


def find_node_groups(
    support: OpSupport,
    candidate_devices: Callable[[int], tuple[int, ...]],
    seconds: Mapping[int, float],
    grain_s: float,
) -> tuple[NodeGroup, ...]:
    """Return the node groups of a graph in topological order.

    candidate_devices: returns the devices that may run a node. seconds: the cost of each node to
    place, on its fastest device; 0 for states, each of which has a reader. grain_s: the maximum
    cost of a node group.
    """
    builder = _GroupBuilder(support, candidate_devices, seconds, grain_s)
    builder.join_operands()
    builder.join_readers()
    groups = builder.groups()
    if len(groups) > MOST:
        groups = _neighbours(groups, seconds)
    return tuple(NodeGroup(tuple(nodes), devices) for nodes, devices in groups)


class _GroupBuilder:
    """Node groups while they grow; a group is identified by its first node."""

    def __init__(
        self,
        support: OpSupport,
        candidate_devices: Callable[[int], tuple[int, ...]],
        seconds: Mapping[int, float],
        grain_s: float,
    ) -> None:
        self._support = support
        self._candidate_devices = candidate_devices
        self._seconds = seconds
        self._grain_s = grain_s
        self._joined: dict[int, int] = {}
        self._total_s: dict[int, float] = {}

    def _find(self, node: int) -> int:
        joined = self._joined
        while joined[node] != node:
            joined[node] = node = joined[joined[node]]
        return node

    def _fits(self, one: int, other: int) -> bool:
        return (
            self._candidate_devices(one) == self._candidate_devices(other)
            and self._total_s[one] + self._total_s[other] <= self._grain_s
        )

    def _join(self, node_group: int, other: int) -> None:
        self._joined[other] = node_group
        self._total_s[node_group] += self._total_s[other]

    def join_operands(self) -> None:
        states, operands = self._support.graph.states, self._support.operands
        for node in (n for n in self._seconds if n not in states):
            self._begin(node)
            around = {self._find(p) for p in operands[node] if p in self._joined}
            if len(around) == 1 and self._fits(node_group := around.pop(), node):
                self._join(node_group, node)
            for state in operands[node]:  # states without an earlier reader
                if state in states and state in self._seconds and state not in self._joined:
                    self._begin(state)
                    if self._candidate_devices(state) == self._candidate_devices(node):
                        self._join(self._find(node), state)

    def _begin(self, node: int) -> None:
        self._joined[node] = node
        self._total_s[node] = self._seconds[node]

    def join_readers(self) -> None:
        readers: dict[int, set[int]] = {}
        for node in self._seconds:
            here = self._find(node)
            found = readers.setdefault(here, set())
            found.update(self._find(r) for r in self._support.readers[node] if r in self._joined)
        for node_group in reversed(list(readers)):
            after = {self._find(reader) for reader in readers[node_group]} - {node_group}
            if len(after) == 1 and self._fits(other := after.pop(), node_group):
                self._join(other, node_group)

    def groups(self) -> list[tuple[list[int], tuple[int, ...]]]:
        """Return the nodes and the candidate devices of each node group, in topological order."""
        members: dict[int, list[int]] = {}
        for node in self._seconds:
            members.setdefault(self._find(node), []).append(node)
        return _in_order(
            [(nodes, self._candidate_devices(nodes[0])) for nodes in members.values()],
            self._support,
        )


def _in_order(
    groups: list[tuple[list[int], tuple[int, ...]]], support: OpSupport
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return node groups in topological order, stable by their first nodes."""
    groups.sort(key=lambda group: group[0][0])
    of_node = {node: number for number, (nodes, _) in enumerate(groups) for node in nodes}
    after: list[set[int]] = [set() for _ in groups]
    waits = [0] * len(groups)
    for number, (nodes, _) in enumerate(groups):
        read = {of_node[p] for n in nodes for p in support.operands[n] if p in of_node}
        for other in read - {number}:
            after[other].add(number)
            waits[number] += 1
    ready = [number for number, count in enumerate(waits) if not count]  # in order: a heap
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for number in after[order[-1]]:
            waits[number] -= 1
            if not waits[number]:
                heapq.heappush(ready, number)
    return [groups[number] for number in order]


def _neighbours(
    groups: Sequence[tuple[list[int], tuple[int, ...]]], seconds: Mapping[int, float]
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Merge neighbouring node groups with the same candidate devices."""
    most_s = 2 * sum(seconds.values()) / MOST
    out: list[tuple[list[int], tuple[int, ...]]] = []
    total_s = 0.0
    for nodes, candidate_devices in groups:
        size_s = sum(seconds[node] for node in nodes)
        if out and out[-1][1] == candidate_devices and total_s + size_s <= most_s:
            out[-1][0].extend(nodes)
            total_s += size_s
        else:
            out.append((list(nodes), candidate_devices))
            total_s = size_s
    return out
