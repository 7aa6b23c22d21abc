"""Index checks: the node and device numbers of a plan are in range, and states and weights have the
right op.

A negative number would count from the end in Python: a check of one device would apply to another.
Complexity: O(nodes + copies). Examples: tests/plan/test_plan_verify.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.errors import PlanError
from ..types.plan_types import PlanValue, scratch_of


def check_numbers(plan: PlanValue) -> None:
    """Check all numbers of a plan whose placements and memory have the right lengths.

    Raises
    ------
    PlanError
        The first number that is out of range, or refers to a node of another kind.
    """
    graph, devices = plan.graph, range(len(plan.topology.devices))
    used = {placement.device for placement in plan.placements}
    used.update([split.device for split in plan.splits], [device for device, _ in plan.locations])
    if not used <= set(devices):
        raise _fail(f"devices {sorted(used)}, expected some of {len(devices)}")
    named = set(_nodes_of(plan))
    named.update([v if v >= 0 else scratch_of(v) for _, v in plan.locations])
    if named and not 0 <= min(named) <= max(named) < len(graph.nodes):
        raise _fail(f"nodes {min(named)} to {max(named)}, expected some of {len(graph.nodes)}")
    for device in devices:
        memory = plan.memory[device]
        if not graph.data.keys() >= set(memory.weights):
            raise _fail(f"weights {memory.weights} of {plan.topology.devices[device].name}")
        states = [
            node
            for node, state in graph.states.items()
            if node == state and plan.placements[node].device == device
        ]
        if sorted(memory.states) != states:
            name = plan.topology.devices[device].name
            raise _fail(f"states {memory.states} in the memory of {name}, expected {states}")


def _nodes_of(plan: PlanValue) -> Iterator[int]:
    for split in plan.splits:
        yield from split.nodes
        yield from split.observed
        yield from [copy.node for copy in split.uploads]
        yield from [copy.node for copy in split.downloads]
        for pair in split.in_place:
            yield from pair


def _fail(message: str) -> PlanError:
    return PlanError(f"[plan] {message}")
