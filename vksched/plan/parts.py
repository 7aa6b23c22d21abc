"""Parts: a plan over several computers, cut so that each has a plan of its own.

Problem: one plan says what all devices do; a computer can only wait for its own ones. Method: a
part has the splits of one host, in the plan's order. What another host makes and this one needs is
an input there, that a step takes; what others need is sent by a step. The steps stand where the
plan has the split that needs the value, so that all hosts follow one order and none waits in a
circle.

    plan     split 0 (node1) --h--> split 1 (node2) --y--> caller
    node1    split 0, send h to node2
    node2    take h of node1, split 0, send y to the caller
    caller   take y of node2

Every node keeps its id in all parts; what a part has nothing to do with is a blank input there.
Complexity: O(hosts * nodes). Examples: tests/plan/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .plan import Plan


@dataclass(frozen=True, slots=True)
class Send:
    """A value goes to another host, once the own split that makes it is complete."""

    value: int
    split: int
    host: str


@dataclass(frozen=True, slots=True)
class Take:
    """A value comes from another host. shown: observers of the caller's see it then."""

    value: int
    host: str
    shown: bool = False


@dataclass(frozen=True, eq=False)
class Part:
    """What one host does of a plan.

    host: its name, "" for the caller. plan: over its own devices, with their full names, the last
    of which is its CPU; values of other hosts are inputs of its graph. numbers: for each of its
    splits the number in the whole plan. steps: by split those before it, in order; those under the
    number of splits that are no commits come behind all these, before the results. inputs: what it
    needs of the caller. results: how many of its graph's outputs are the caller's own; the rest is
    what other hosts need.
    """

    host: str
    plan: Plan
    numbers: tuple[int, ...]
    steps: Mapping[int, tuple[Send | Take, ...]]
    inputs: tuple[int, ...]
    results: int

    @property
    def peers(self) -> frozenset[str]:
        """The hosts that it sends to or takes from."""
        return frozenset(step.host for steps in self.steps.values() for step in steps)
