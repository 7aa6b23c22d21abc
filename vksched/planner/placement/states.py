"""States: where each state of a graph lives, so that as little as possible crosses in each run.

Problem: a weight may lie on several devices, as it never changes. A state has one home: a reader on
another device gets it over the links in each run, and a next value that is made elsewhere comes
back. Method: for each device on which a node reads the state or makes its next value, the seconds
that the links take if the state lives there. The least wins; of equal ones the preferred device.

    cache @ gpu:1 --> dynamic_update_slice @ gpu:1 --> assign @ gpu:1       0 bytes cross
    cache @ gpu:0 ==> dynamic_update_slice @ gpu:1 ==> assign @ gpu:0       the cache crosses twice

Nodes without a device count for nothing: they follow the state. Complexity: O(readers * devices)
for a state. Examples: tests/planner/test_state_placement.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...common.dtypes import WORD_BYTES
from ...plan.costs.op_support import OpSupport
from ...plan.types.plan_types import value_of


class StatePlacement:
    """What the devices of nodes say of the homes of states.

    device: of each node that has one, which may grow. order: all devices, the preferred one first.
    """

    def __init__(self, support: OpSupport, device: Mapping[int, int], order: Sequence[int]) -> None:
        self._support = support
        self._graph = support.graph
        self._device = device
        self._order = order
        self._next: dict[int, int] = {
            state: self._graph.nodes[node].inputs[1]
            for node, state in self._graph.states.items()
            if node != state
        }
        """For each state that a run writes its next value."""

    def ranked(self, state: int) -> list[int]:
        """Return the devices that read a state or make its next value, the best home first."""
        around = [node for node in self._support.readers[state] if node not in self._graph.states]
        if state in self._next:
            around.append(self._graph.view_base(self._next[state]))
        found = {self._device[node] for node in around if node in self._device}
        rank = self._order.index
        return sorted(
            found,
            key=lambda pinned_device: (self._crossing_s(state, pinned_device), rank(pinned_device)),
        )

    def _crossing_s(self, state: int, pinned_device: int) -> float:
        """Return the seconds on the links in each run if a state lives on a device."""
        way = self._support.topology.route
        total_s = 0.0
        for device, size_bytes in self._read_bytes(state).items():
            if device != pinned_device:
                total_s += way(pinned_device, device).seconds(size_bytes)
        source = self._device.get(
            self._graph.view_base(self._next.get(state, state)), pinned_device
        )
        if state in self._next and source != pinned_device:
            total_s += way(source, pinned_device).seconds(self._bytes([self._next[state]]))
        return total_s

    def _read_bytes(self, state: int) -> dict[int, int]:
        """Return by device the bytes that nodes there read of a state: all of it, or parts."""
        graph, parts = self._graph, dict[int, set[int]]()
        for reader in self._support.readers[state]:
            if reader in self._device and reader not in graph.states:
                read = {i for i in graph.nodes[reader].inputs if graph.view_bases[i] == state}
                here = parts.setdefault(self._device[reader], set())
                here.update(value_of(graph, operand, False) for operand in read)
        return {d: self._bytes([state] if state in own else own) for d, own in parts.items()}

    def _bytes(self, values: Collection[int]) -> int:
        return WORD_BYTES * sum(self._graph.words[value] for value in values)
