"""Task graph: a graph as tasks for `schedule` and pipeline_stages.py.

    node groups   {a, b, c} --> {f}         tasks   0: 2 ms on gpu:0, 3 ms on gpu:1, 4 MiB
                   \\-> {d, e} -/       edges   0 -> 1: 64 KiB, 0 -> 2: 64 KiB, 2 -> 1: 64 KiB

A task costs the seconds of its nodes and of the transfers of inputs and outputs. Weights and states
count as memory of the first task that reads them. A state has one device: another task that reads
it, or computes its next value, has an edge with its bytes. If the device of a state is fixed, its
transfers count as seconds of each task. A graph may have several task graphs: one by seconds, and
one by bytes. Complexity: O(edges + node groups * devices). Examples: tests/planner/test_select.py,
tests/planner/test_plan_objectives.py, tests/planner/test_state_placement.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...common.dtypes import WORD_BYTES
from ...plan.costs.op_support import OpSupport
from ...plan.types.plan_types import value_of
from ...schedule import Task
from ...schedule.model.task_graph import MOST as MAX_AMOUNT
from ..placement.candidate_devices import PlacementHints
from ..placement.node_groups import NodeGroup

RULE = "the best plan by simulation has it here"
"""The reason of a node placed by a candidate, as `plan.explain()` shows it."""


class Partition:
    """The node groups of a graph; `devices` are those that compete, and `pinned_devices` the
    devices of states that have one.
    """

    def __init__(
        self,
        support: OpSupport,
        devices: tuple[int, ...],
        node_groups: tuple[NodeGroup, ...],
        pinned_devices: Mapping[int, int],
    ) -> None:
        self._support = support
        self._topology = support.topology
        self._devices = devices
        self._names = [spec.name for spec in support.topology.devices]
        self._pinned_devices = pinned_devices
        self.node_groups = node_groups
        """The nodes that are placed as one, in topological order."""

    def hints_for(self, devices: Sequence[str]) -> PlacementHints:
        """Return hints with a device for each node group; states follow their readers."""
        index = {name: number for number, name in enumerate(self._names)}
        states = self._support.graph.states
        each = zip(self.node_groups, devices, strict=True)
        on = {n: index[d] for b, d in each for n in b.nodes if n not in states}
        order = tuple(dict.fromkeys((*self._devices, *self._topology.order)))
        return PlacementHints(order, on, RULE)

    @cached_property
    def tasks(self) -> tuple[list[Task], list[tuple[str, str, float]]]:
        """Node groups as tasks, and the edges between them."""
        graph, number_of = self._support.graph, dict[int, int]()
        for number, node_group in enumerate(self.node_groups):
            number_of.update(dict.fromkeys(node_group.nodes, number))
        flows = [_Flow() for _ in self.node_groups]
        transfer: dict[tuple[int, int], dict[int, int]] = {}
        for number, node_group in enumerate(self.node_groups):
            for node_id in node_group.nodes:
                for operand in graph.nodes[node_id].inputs:
                    root = graph.view_bases[operand]
                    value = value_of(graph, operand, False)
                    if root in graph.data:
                        flows[number].held.add(root)
                    elif root not in number_of:
                        source = self._pinned_devices.get(root, self._topology.cpu)
                        flows[number].inputs.setdefault(source, set()).add(value)
                    elif number_of[root] != number:
                        between = transfer.setdefault((number_of[root], number), {})
                        between[value] = graph.words[value] * WORD_BYTES
        for node_id in {graph.view_base(output) for _, output in graph.outputs} & number_of.keys():
            flows[number_of[node_id]].outputs.setdefault(self._topology.cpu, set()).add(node_id)
        for node_id, state in graph.states.items():
            self._add_state(node_id, state, number_of, flows, transfer)
        there = set[int]().union(
            *(self._support.resident.values())
        )  # resident: needs no further memory
        tasks: list[Task] = []
        for number, (node_group, flow) in enumerate(zip(self.node_groups, flows, strict=True)):
            seconds = {
                self._names[d]: min(self._seconds(node_group, d, flow), MAX_AMOUNT)
                for d in node_group.candidate_devices
            }
            tasks.append(Task(str(number), seconds, self._bytes(flow.held - there)))
            there |= flow.held
        edges = [(str(a), str(b), float(sum(sizes.values()))) for (a, b), sizes in transfer.items()]
        return tasks, edges

    def _add_state(
        self,
        node_id: int,
        state: int,
        number_of: dict[int, int],
        flows: list[_Flow],
        transfer: dict[tuple[int, int], dict[int, int]],
    ) -> None:
        """Add the memory of a state, or the transfer of its next value.

        node_id: the state, or the node that writes its next value.
        """
        graph = self._support.graph
        if node_id == state:
            if state in number_of:
                flows[number_of[state]].held.add(state)
            return
        value = graph.nodes[node_id].inputs[1]
        number = number_of.get(graph.view_base(value))
        if number is None:
            return
        if state in self._pinned_devices:
            flows[number].outputs.setdefault(self._pinned_devices[state], set()).add(value)
        elif state not in number_of:  # no node reads it: it is on the device of its next value
            flows[number].held.add(state)
        elif number_of[state] != number:
            first, last = sorted((number_of[state], number))
            transfer.setdefault((first, last), {})[node_id] = self._bytes([value])

    def _seconds(self, node_group: NodeGroup, device: int, flow: _Flow) -> float:
        """Return the seconds of a node group on a device, transfers included."""
        way, moved_s = self._topology.route, 0.0
        for source, values in flow.inputs.items():
            if source != device:
                moved_s += way(source, device).seconds(self._bytes(values))
        for target, values in flow.outputs.items():
            if target != device:
                moved_s += way(device, target).seconds(self._bytes(values))
        return sum(self._support.node_seconds(n, device) for n in node_group.nodes) + moved_s

    def _bytes(self, values: Iterable[int]) -> int:
        return WORD_BYTES * sum(self._support.graph.words[value] for value in values)


@dataclass(frozen=True, slots=True)
class _Flow:
    """The memory and the transfers of a task.

    `held` are its weights and states; `inputs` and `outputs` are transfers from and to devices,
    except those between tasks.
    """

    held: set[int] = field(default_factory=set)
    inputs: dict[int, set[int]] = field(default_factory=dict)
    outputs: dict[int, set[int]] = field(default_factory=dict)
