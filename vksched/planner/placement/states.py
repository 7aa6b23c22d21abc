"""State placement: rank devices for each state by the transfers that they cause in each run.

Problem: several devices can hold copies of a weight, because it never changes. A state has one
device: readers on other devices get it by a transfer in each run, and a next value computed
elsewhere is transferred back. Method: for each device that reads the state or computes its next
value, sum the seconds on the links if the state lives there. The smallest sum wins; ties go to the
preferred device.

    cache @ gpu:1 --> dynamic_update_slice @ gpu:1 --> assign @ gpu:1       no transfer
    cache @ gpu:0 ==> dynamic_update_slice @ gpu:1 ==> assign @ gpu:0       two transfers

Nodes without a device are ignored: they follow the state. Complexity: O(readers * devices) for a
state. Examples: tests/planner/test_state_placement.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...common.dtypes import WORD_BYTES
from ...plan.costs.op_support import OpSupport
from ...plan.types.plan_types import value_of


class StatePlacement:
    """Ranks devices for states by the devices of other nodes.

    `device` holds the devices of placed nodes, and may grow; `order` all devices, the preferred one
    first.
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
        """By state that a run writes, its next value."""

    def ranked(self, state: int) -> list[int]:
        """Return the devices that read a state or compute its next value, the best one first."""
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
        """Return the bytes that each device reads of a state: all of it, or parts."""
        graph, parts = self._graph, dict[int, set[int]]()
        for reader in self._support.readers[state]:
            if reader in self._device and reader not in graph.states:
                read = {i for i in graph.nodes[reader].inputs if graph.view_bases[i] == state}
                here = parts.setdefault(self._device[reader], set())
                here.update(value_of(graph, operand, False) for operand in read)
        return {d: self._bytes([state] if state in own else own) for d, own in parts.items()}

    def _bytes(self, values: Collection[int]) -> int:
        return WORD_BYTES * sum(self._graph.words[value] for value in values)
