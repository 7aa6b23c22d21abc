"""Cuts: a graph as tasks that `schedule` and stages.py can place.

    bundles   {a, b, c} --> {f}         tasks   0: 2 ms on gpu:0, 3 ms on gpu:1, 4 MiB
                   \\-> {d, e} -/       edges   0 -> 1: 64 KiB, 0 -> 2: 64 KiB, 2 -> 1: 64 KiB

A task takes the seconds of its nodes and of what the caller gives and gets back. Weights count as
memory of the first task that reads them. One graph may have several cuts: one by seconds, and one
by bytes. Complexity: O(edges + bundles * devices). Examples: tests/plan/test_by_cost.py,
tests/plan/test_plan_objectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...schedule import Task
from ...schedule.values import MOST as MOST_AMOUNT
from ...types import WORD_BYTES
from ..support import Support
from ..value import value_of
from .bundles import Bundle
from .placement import Wishes

RULE = "the best plan by simulation has it here"
"""What `plan.explain()` says of a node that is where a candidate wants it."""


class Cut:
    """The bundles of a graph. devices: those that compete."""

    def __init__(
        self, support: Support, devices: tuple[int, ...], bundles: tuple[Bundle, ...]
    ) -> None:
        self._support = support
        self._machine = support.machine
        self._devices = devices
        self._names = [spec.name for spec in support.machine.devices]
        self.bundles = bundles
        """The nodes that are placed as one, in topological order."""

    def wish(self, devices: Sequence[str]) -> Wishes:
        """Returns the wish for a device for each bundle."""
        index = {name: number for number, name in enumerate(self._names)}
        on = {n: index[d] for b, d in zip(self.bundles, devices, strict=True) for n in b.nodes}
        order = tuple(dict.fromkeys((*self._devices, *self._machine.order)))
        return Wishes(order, on, RULE)

    @cached_property
    def tasks(self) -> tuple[list[Task], list[tuple[str, str, float]]]:
        """Bundles as tasks, with what goes between them."""
        graph, of_node = self._support.graph, dict[int, int]()
        for number, bundle in enumerate(self.bundles):
            of_node.update(dict.fromkeys(bundle.nodes, number))
        held = set[int]().union(*(self._support.resident.values()))  # it takes no more room
        crossing: dict[tuple[int, int], dict[int, int]] = {}
        tasks: list[Task] = []
        results = {graph.root(node) for _, node in graph.outputs}
        for number, bundle in enumerate(self.bundles):
            weights: set[int] = set()
            given: dict[int, int] = {}
            taken = sum(graph.words[n] * WORD_BYTES for n in results.intersection(bundle.nodes))
            for node_id in bundle.nodes:
                for operand in graph.nodes[node_id].inputs:
                    root = graph.roots[operand]
                    value = value_of(graph, operand, False)
                    size_bytes = graph.words[value] * WORD_BYTES
                    if root in of_node:
                        if of_node[root] != number:
                            crossing.setdefault((of_node[root], number), {})[value] = size_bytes
                    elif root in graph.data:
                        weights.add(root)
                    else:
                        given[value] = size_bytes
            seconds = {
                self._names[d]: min(
                    self._seconds(bundle, d, sum(given.values()), taken), MOST_AMOUNT
                )
                for d in bundle.able
            }
            memory = sum(graph.words[w] * WORD_BYTES for w in weights - held)
            held |= weights
            tasks.append(Task(str(number), seconds, memory))
        edges = [(str(a), str(b), float(sum(sizes.values()))) for (a, b), sizes in crossing.items()]
        return tasks, edges

    def _seconds(
        self, bundle: Bundle, device: int, given_bytes: float, taken_bytes: float
    ) -> float:
        own_s = sum(self._support.node_seconds(n, device) for n in bundle.nodes)
        return min(own_s + self._host_s(device, given_bytes, taken_bytes), MOST_AMOUNT)

    def _host_s(self, device: int, given_bytes: float, taken_bytes: float) -> float:
        """Returns what values of the caller take on their way to a device and back."""
        way, cpu = self._machine.way, self._machine.cpu
        if device == cpu:
            return 0.0
        there = way(cpu, device).seconds(given_bytes) if given_bytes else 0.0
        return there + (way(device, cpu).seconds(taken_bytes) if taken_bytes else 0.0)
