"""Host plans: a plan over several hosts, cut into one plan for each.

Problem: one plan covers all devices, but a host can only wait for its own ones. Method: a host plan
has the splits of one host, in the order of the plan. A value of another host is an input there,
received by a step before the split that needs it. A value for other hosts is sent by a step after
the split that produces it. A host may defer a send, but not beyond its next wait for another host.
All that a host waits for is therefore earlier in the order of the whole plan, and no cycle of waits
exists.

    plan     split 0 (node1) --h--> split 1 (node2) --y--> caller
    node1    split 0, send h to node2
    node2    take h of node1, split 0, send y to the caller
    caller   take y of node2

Every node has one id in all host plans. A node without a use in a host plan is a blank input there.
The planner cuts plans in planner/partition; verify_host_plans.py checks them. Examples:
tests/planner/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.graph import Node
from ..plan import Plan
from ..types.plan_types import DeviceMemory


@dataclass(frozen=True, slots=True)
class Send:
    """A value goes to another host after the split that produces it, at the latest before the host
    waits for another one.
    """

    value: int
    split: int
    host: str


@dataclass(frozen=True, slots=True)
class Recv:
    """A value comes from another host. shown: the nodes that observers then see, the value or views
    of it.
    """

    value: int
    host: str
    shown: tuple[int, ...] = ()


Steps = Mapping[int, tuple[Send | Recv, ...]]


@dataclass(frozen=True, eq=False)
class HostPlan:
    """The share of one host in a plan.

    host: its name, "" for the driver. plan: the plan of its own devices, under the names that the
    host uses, the last of which is its CPU; values of other hosts are inputs of its graph. numbers:
    for each of its splits, the number in the whole plan. steps: for each split, the steps before
    it, in order; the steps under the number of splits that are no commits come after all these,
    before the results. inputs: the values that it needs of the driver. results: the number of its
    graph's outputs that are the driver's own; other hosts need the remaining ones. splits: the
    number of splits of the whole plan.
    """

    host: str
    plan: Plan
    numbers: tuple[int, ...]
    steps: Steps
    inputs: tuple[int, ...]
    results: int
    splits: int

    @cached_property
    def peers(self) -> frozenset[str]:
        """The hosts that it sends to or receives from."""
        return frozenset(step.host for step in self.walk())

    @cached_property
    def taken(self) -> frozenset[int]:
        """The values that come from other hosts."""
        return frozenset(step.value for step in self.walk() if isinstance(step, Recv))

    def walk(self) -> Iterator[Send | Recv]:
        """Return its steps in order."""
        for position in sorted(self.steps):
            yield from self.steps[position]


BLANK = TensorType((), FLOAT32)
"""The type of a node without a use in a host plan."""


NO_SHAPE = Attrs({"shape": BLANK.shape, "dtype": BLANK.dtype})


NOTHING = DeviceMemory((), 0, (), (), (), 0)


def blank(node_id: int) -> Node:
    """Return a node without a use in a host plan."""
    return Node(node_id, "input", (), NO_SHAPE, BLANK, f"~{node_id}")
