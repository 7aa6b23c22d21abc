"""In-place updates: find next values of states that are written directly into the state's memory.

Problem: a state retains its old value until the run can no longer fail, so its next value is stored
elsewhere and copied at the end. This costs memory and time for all parameters and moments in
training. Method: the last nodes of an update, such as `w - rate * mean`, run in the split that
writes states, which starts when everything else is complete. There they may overwrite their
operands if no later node reads the old value. An op that updates a part of an operand writes only
that part.

    run     ... -> gradient                       | wait for all
    commit  mean  = 0.9 mean + 0.1 gradient       in the memory of mean
            step  = rate mean                     in memory of its own, because it is no state
            w     = w - step                      in the memory of w
            cache = cache with rows at start      these rows, in the memory of cache

A value is not written in place if it is an output, backed up on the host or read by another device;
if states need the old values of each other; or if its operands are larger than itself, such as the
terms of a sum of gradients, which would all be live until the end. Complexity: O(edges). Examples:
tests/planner/test_in_place.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...plan.costs.op_support import OpSupport
from ...plan.types.plan_types import may_lie_over, numpy_may_write

EXTRA_WORDS = 4096
"""Words that may be live until the end for a value that is written in place, in addition to a share
of its size.
"""


@dataclass(frozen=True, slots=True)
class InPlace:
    """The nodes that run in splits that write states.

    `order` holds the nodes in their order, before copies; `states` maps those that are written in
    place to their states.
    """

    order: tuple[int, ...] = ()
    states: Mapping[int, int] = field(default_factory=dict)


def find_in_place(
    support: OpSupport, device: Mapping[int, int], in_host: Mapping[int, int]
) -> InPlace:
    """Return which nodes run in the splits that write states.

    device: the device of each node that runs. in_host: weights in host memory.
    """
    candidate_devices = _Candidates(support, device, in_host)
    states = candidate_devices.next_values()
    while states:
        nodes = candidate_devices.inside(states)
        states = {n: s for n, s in states.items() if n in nodes}
        order, copied = _order(support, nodes, states)
        if not copied:
            return InPlace(tuple(order), states)
        states = {
            n: s for n, s in states.items() if n not in copied
        }  # an order exists for the rest
    return InPlace()


class _Candidates:
    """The nodes that may run in a split that writes states: they cannot fail."""

    def __init__(
        self, support: OpSupport, device: Mapping[int, int], in_host: Mapping[int, int]
    ) -> None:
        graph = support.graph
        self._support, self._device, self._in_host = support, device, in_host
        returned = {graph.view_base(v) for _, v in graph.outputs} | set(
            map(graph.view_base, graph.backed_up_states)
        )
        self._returned = returned | support.observed_roots
        assigned = {graph.nodes[n].inputs[1] for n, s in graph.states.items() if n != s}
        self._lasting = self._returned | set(map(graph.view_base, assigned))

    def next_values(self) -> dict[int, int]:
        """Return the next values that may be stored in the memory of their states."""
        graph, found, several = self._support.graph, dict[int, int](), set[int]()
        for node_id, state in graph.states.items():
            if node_id == state:
                continue
            value = graph.view_base(graph.nodes[node_id].inputs[1])
            several |= {value} & found.keys()
            here = self._device[state]
            if self._device.get(value) != here or not may_lie_over(graph, value, state):
                continue
            if self._may_move(value) or self._numpy_may_write(value, state):
                found[value] = state
        return {value: state for value, state in found.items() if value not in several}

    def inside(self, states: Mapping[int, int]) -> set[int]:
        """Return these next values, and nodes computed from them, without readers elsewhere."""
        support, device = self._support, self._device
        readers = support.readers
        found, reached = set(states), list(states)
        for value in reached:  # grows during the loop
            for reader in readers[value]:
                if reader not in found and self._may_move(reader):
                    found.add(reader)
                    reached.append(reader)

        def leaves(value: int) -> bool:
            return any(
                device[r] != device[value]
                if r in found
                else support.graph.states.get(r, -1) != states.get(value, -2)
                for r in readers[value]
            )

        pending = [value for value in found if leaves(value) or self._holds_much(value, found)]
        while pending:
            value = pending.pop()
            if value in found:
                found.remove(value)
                operands = support.operands[value]
                pending += [p for p in operands if p in found and leaves(p)]
        self._add_intermediates(found)
        return found

    def _holds_much(self, value: int, found: set[int]) -> bool:
        """Return True if the operands that would be live until the end only for a node are larger
        than a copy of its result.
        """
        words, states = self._support.graph.words, self._support.graph.states
        outside = (p for p in self._support.operands[value] if p in self._device and p not in found)
        held = sum(words[p] for p in outside if p not in states and p not in self._lasting)
        return held > words[value] + max(words[value] // 4, EXTRA_WORDS)

    def _add_intermediates(self, found: set[int]) -> None:
        """Add nodes computed from states for the set alone, to shorten their lifetimes."""
        support, words = self._support, self._support.graph.words
        reached, missing = list(found), dict[int, set[int]]()
        for value in reached:  # grows during the loop
            for operand in support.operands[value]:
                if operand in found or operand not in self._device or not self._may_move(operand):
                    continue
                parts = [p for p in support.operands[operand] if p not in support.graph.states]
                if sum(words[p] for p in parts) >= words[operand]:
                    continue
                left = missing.setdefault(operand, set(support.readers[operand]))
                if self._device[value] == self._device[operand]:
                    left.discard(value)
                if not left:
                    found.add(operand)
                    reached.append(operand)

    def _may_move(self, node_id: int) -> bool:
        support, spec = self._support, self._support.topology.devices[self._device[node_id]]
        return (
            support.graph.nodes[node_id].declaration.in_place is not None
            and spec.kind != "cpu"  # on a CPU copies cannot fail, but ops can
            and spec.submit_granularity == "split"
            and node_id not in self._returned
            and self._in_host.keys().isdisjoint(support.operands[node_id])
        )

    def _numpy_may_write(self, value: int, state: int) -> bool:
        support, here = self._support, self._device[value]
        return (
            support.topology.devices[here].kind == "cpu"
            and self._returned.isdisjoint((value, state))
            and all(self._device[r] == here for r in support.readers[state])
            and numpy_may_write(support.graph, value, state, support.readers[state])
        )


def _order(
    support: OpSupport, nodes: set[int], states: Mapping[int, int]
) -> tuple[list[int], set[int]]:
    """Return an execution order, and the nodes that must be copied because no order lets them write
    in place.

    Each node runs after its operands, and a node that overwrites a state after the other readers of
    the state. Independent nodes are adjacent, so that no barrier separates them. If some results
    are not states, each node is followed by its readers, so that few of these results are live at
    once.
    """
    waits = _Waits(support, nodes, states)
    ready = deque(sorted(n for n in nodes if waits.is_free(n)))
    has_intermediates = len(nodes) > len(states)
    out: list[int] = []
    copied: set[int] = set()
    while len(out) < len(nodes):
        if not ready:
            ready.append(waits.break_cycle())
            copied.add(ready[0])
        out.append(ready.popleft())
        freed = waits.place(out[-1])
        if has_intermediates:
            ready.extendleft(reversed(freed))
        else:
            ready.extend(freed)
    return out, copied


class _Waits:
    """The dependencies of nodes: `_behind` on their operands, `_over` on other readers of the state
    that they overwrite.
    """

    def __init__(self, support: OpSupport, nodes: set[int], states: Mapping[int, int]) -> None:
        self._behind: dict[int, set[int]] = {}
        self._over: dict[int, set[int]] = {}
        self._after: dict[int, list[int]] = {node_id: [] for node_id in nodes}
        for node_id in nodes:
            behind = {p for p in support.operands[node_id] if p in nodes}
            readers = support.readers[states[node_id]] if node_id in states else ()
            over = {r for r in readers if r in nodes and r != node_id} - behind
            self._behind[node_id], self._over[node_id] = behind, over
            for other in (*behind, *over):
                self._after[other].append(node_id)
        self._left = sorted(nodes)
        self._placed: set[int] = set()
        self._path: dict[int, None] = {}
        """Nodes of which each waits for the next one; reused, so that no path is searched twice."""

    def is_free(self, node_id: int) -> bool:
        return not self._behind[node_id] and not self._over[node_id]

    def place(self, node_id: int) -> list[int]:
        """Return the nodes that waited only for this one."""
        self._placed.add(node_id)
        freed: list[int] = []
        for other in sorted(self._after[node_id]):
            if not self.is_free(other):
                self._behind[other].discard(node_id)
                self._over[other].discard(node_id)
                if self.is_free(other):
                    freed.append(other)
        return freed

    def break_cycle(self) -> int:
        """Return a node of a dependency cycle that must not write in place; its wait is removed."""
        path, left = self._path, self._left
        while path and next(reversed(path)) in self._placed:
            path.popitem()
        while not path:
            if left[-1] in self._placed:
                left.pop()
            else:
                path[left[-1]] = None
        last = next(reversed(path))
        while (before := next(iter(self._behind[last] or self._over[last]))) not in path:
            path[before] = None
            last = before
        cycle = [last]
        while cycle[-1] != before:
            path.popitem()
            cycle.append(next(reversed(path)))
        path.popitem()
        # a node of the cycle that waits for no operand waits to overwrite a state
        blocked = max(node_id for node_id in cycle if not self._behind[node_id])
        self._over[blocked].clear()
        return blocked
