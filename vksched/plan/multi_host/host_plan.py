"""Parts: a plan over several computers, cut so that each has a plan of its own.

Problem: one plan says what all devices do; a computer can only wait for its own ones. Method: a
part has the splits of one host, in the plan's order. What another host makes and this one needs is
an input there, that a step takes before the split that needs it. What others need is sent by a step
behind the split that makes it. A host need not send at once, but before it waits for another host.
So all that it waits for comes earlier in the order of the whole plan, and none waits in a circle.

    plan     split 0 (node1) --h--> split 1 (node2) --y--> caller
    node1    split 0, send h to node2
    node2    take h of node1, split 0, send y to the caller
    caller   take y of node2

Every node keeps its id in all parts; what a part has nothing to do with is a blank input there.
make/parts.py cuts, check/parts.py checks. Examples: tests/planner/test_parts.py.
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
    """A value goes to another host, once the own split that makes it is complete: at the latest
    before the host waits for another one.
    """

    value: int
    split: int
    host: str


@dataclass(frozen=True, slots=True)
class Recv:
    """A value comes from another host. shown: what observers see then, it or views of it."""

    value: int
    host: str
    shown: tuple[int, ...] = ()


Steps = Mapping[int, tuple[Send | Recv, ...]]


@dataclass(frozen=True, eq=False)
class HostPlan:
    """What one host does of a plan.

    host: its name, "" for the caller. plan: over its own devices, named as it names them itself,
    the last of which is its CPU; values of other hosts are inputs of its graph. numbers: for each
    of its splits the number in the whole plan. steps: by split those before it, in order; those
    under the number of splits that are no commits come behind all these, before the results.
    inputs: what it needs of the caller. results: how many of its graph's outputs are the caller's
    own; the rest is what other hosts need. splits: how many the whole plan has.
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
        """The hosts that it sends to or takes from."""
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
"""Of a node that a part has nothing to do with."""


NO_SHAPE = Attrs({"shape": BLANK.shape, "dtype": BLANK.dtype})


NOTHING = DeviceMemory((), 0, (), (), (), 0)


def blank(node_id: int) -> Node:
    """Return a node that a part has nothing to do with."""
    return Node(node_id, "input", (), NO_SHAPE, BLANK, f"~{node_id}")
