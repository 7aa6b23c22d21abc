"""Bundles: nodes that are placed as one, so that a plan by cost weighs few things.

Problem: a schedule over single nodes takes long to find, and scatters small ops over devices whose
submissions cost more than they save. Method: a node joins the bundle that makes all its operands,
as long as the bundle stays small; then a bundle joins the only one that reads it. Neither makes a
cycle: all ways into the node, or all ways out of the bundle, end in the other. Where many bundles
are left, neighbours in topological order become one: parts of an order are free of cycles, too.

    x -> a -> b -> c        {a, b, c} --> {f}        {d, e} stays apart: it is large enough
          \\-> d -> e -> f           \\-> {d, e} -/     to be worth a device of its own

Only nodes that the same devices can run are bundled. A state that may live anywhere is in the
bundle of its first reader, and its later readers come after that one. Complexity: O(edges).
Examples: tests/planner/test_select.py, tests/planner/test_state_placement.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...plan.costs.op_support import Support

MOST = 256
"""Bundles, beyond which neighbours become one."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Nodes that are placed as one, states among them. able: devices that can run all of them."""

    nodes: tuple[int, ...]
    able: tuple[int, ...]


def find_bundles(
    support: Support,
    able: Callable[[int], tuple[int, ...]],
    seconds: Mapping[int, float],
    grain_s: float,
) -> tuple[Bundle, ...]:
    """Returns the bundles of a graph in topological order.

    able: the devices that may run a node. seconds: of each node to be placed, on the device that is
    fastest at it; 0 of states, each of which some other node reads. grain_s: a bundle takes no
    further node from there on.
    """
    maker = _Maker(support, able, seconds, grain_s)
    maker.join_operands()
    maker.join_readers()
    groups = maker.groups()
    if len(groups) > MOST:
        groups = _neighbours(groups, seconds)
    return tuple(Bundle(tuple(nodes), able_) for nodes, able_ in groups)


class _Maker:
    """Nodes by bundle, while bundles grow; a bundle is named by its first node."""

    def __init__(
        self,
        support: Support,
        able: Callable[[int], tuple[int, ...]],
        seconds: Mapping[int, float],
        grain_s: float,
    ) -> None:
        self._support = support
        self._able = able
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
            self._able(one) == self._able(other)
            and self._total_s[one] + self._total_s[other] <= self._grain_s
        )

    def _join(self, bundle: int, other: int) -> None:
        self._joined[other] = bundle
        self._total_s[bundle] += self._total_s[other]

    def join_operands(self) -> None:
        states, operands = self._support.graph.states, self._support.operands
        for node in (n for n in self._seconds if n not in states):
            self._begin(node)
            around = {self._find(p) for p in operands[node] if p in self._joined}
            if len(around) == 1 and self._fits(bundle := around.pop(), node):
                self._join(bundle, node)
            for state in operands[node]:  # those that nothing has read yet
                if state in states and state in self._seconds and state not in self._joined:
                    self._begin(state)
                    if self._able(state) == self._able(node):
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
        for bundle in reversed(list(readers)):
            after = {self._find(reader) for reader in readers[bundle]} - {bundle}
            if len(after) == 1 and self._fits(other := after.pop(), bundle):
                self._join(other, bundle)

    def groups(self) -> list[tuple[list[int], tuple[int, ...]]]:
        """Returns the nodes and the able devices of each bundle, in topological order."""
        members: dict[int, list[int]] = {}
        for node in self._seconds:
            members.setdefault(self._find(node), []).append(node)
        return _in_order(
            [(nodes, self._able(nodes[0])) for nodes in members.values()], self._support
        )


def _in_order(
    groups: list[tuple[list[int], tuple[int, ...]]], support: Support
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Returns bundles so that each comes after those that it reads, the first ones first."""
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
    """Returns fewer bundles, each a stretch of the order on the same devices."""
    most_s = 2 * sum(seconds.values()) / MOST
    out: list[tuple[list[int], tuple[int, ...]]] = []
    total_s = 0.0
    for nodes, able in groups:
        size_s = sum(seconds[node] for node in nodes)
        if out and out[-1][1] == able and total_s + size_s <= most_s:
            out[-1][0].extend(nodes)
            total_s += size_s
        else:
            out.append((list(nodes), able))
            total_s = size_s
    return out
