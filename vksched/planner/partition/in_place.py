"""In place: which next values of states are written where the state lies, without a copy.

Problem: a state keeps its old value until the run cannot fail any more, so its next value lies
elsewhere and is copied at the end: memory and time for all parameters and moments of a training.
Method: the last nodes of an update, such as `w - rate * mean`, run in the split that writes states,
which starts when all else is complete. There they may write over what they read, if nobody reads
the old value after them. An op that changes a part of an operand writes no more than that part.

    run     ... -> gradient                       | wait for all
    commit  mean  = 0.9 mean + 0.1 gradient       in the memory of mean
            step  = rate mean                     in memory of its own, as it is no state's value
            w     = w - step                      in the memory of w
            cache = cache with rows at start      these rows, in the memory of cache

A value stays out of it if anybody else is to get it: the caller, the host's backup of the state, or
another device; or if states need each other's old values; or if it is made of more than itself,
such as the sum of several gradients, as all of that would have to live until the end. Complexity:
O(edges). Examples: tests/planner/test_in_place.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...plan.costs.op_support import OpSupport
from ...plan.types.plan_types import may_lie_over, numpy_may_write

FEW_WORDS = 4096
"""So many words more may live until the end for a value that is written in place, without regard to
its size.
"""


@dataclass(frozen=True, slots=True)
class InPlace:
    """order: the nodes that run in splits that write states, before copies. states: for each of
    them that is written in place its state.
    """

    order: tuple[int, ...] = ()
    states: Mapping[int, int] = field(default_factory=dict)


def find_in_place(
    support: OpSupport, device: Mapping[int, int], in_host: Mapping[int, int]
) -> InPlace:
    """Return which nodes run in the splits that write states.

    device: of each node that runs. in_host: weights in host memory.
    """
    candidate_devices = _Able(support, device, in_host)
    states = candidate_devices.next_values()
    while states:
        nodes = candidate_devices.inside(states)
        states = {n: s for n, s in states.items() if n in nodes}
        order, copied = _order(support, nodes, states)
        if not copied:
            return InPlace(tuple(order), states)
        states = {n: s for n, s in states.items() if n not in copied}  # what is left has an order
    return InPlace()


class _Able:
    """What may run in a split that writes states: it cannot fail, and nobody else needs it."""

    def __init__(
        self, support: OpSupport, device: Mapping[int, int], in_host: Mapping[int, int]
    ) -> None:
        graph = support.graph
        self._support, self._device, self._in_host = support, device, in_host
        given = {graph.view_base(v) for _, v in graph.outputs} | set(
            map(graph.view_base, graph.backed_up_states)
        )
        self._given = given | support.observed_roots
        assigned = {graph.nodes[n].inputs[1] for n, s in graph.states.items() if n != s}
        self._lasting = self._given | set(map(graph.view_base, assigned))

    def next_values(self) -> dict[int, int]:
        """Return the values that may lie over the state that they are the next value of."""
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
        """Return those of these values, and of what is made of them, that nobody else needs."""
        support, device = self._support, self._device
        readers = support.readers
        found, reached = set(states), list(states)
        for value in reached:  # which grows
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

        left = [value for value in found if leaves(value) or self._holds_much(value, found)]
        while left:
            value = left.pop()
            if value in found:
                found.remove(value)
                operands = support.operands[value]
                left += [p for p in operands if p in found and leaves(p)]
        self._add_made_of_states(found)
        return found

    def _holds_much(self, value: int, found: set[int]) -> bool:
        """Whether what a node reads of the run, and what need not live until the end otherwise, is
        more than a copy of its result.
        """
        words, states = self._support.graph.words, self._support.graph.states
        apart = (p for p in self._support.operands[value] if p in self._device and p not in found)
        held = sum(words[p] for p in apart if p not in states and p not in self._lasting)
        return held > words[value] + max(words[value] // 4, FEW_WORDS)

    def _add_made_of_states(self, found: set[int]) -> None:
        """Add what is made of states for these alone: it need not live beside them until then."""
        support, words = self._support, self._support.graph.words
        reached, missing = list(found), dict[int, set[int]]()
        for value in reached:  # which grows
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
            and spec.kind != "cpu"  # where a copy cannot fail, and computing can
            and spec.submit_granularity == "split"
            and node_id not in self._given
            and self._in_host.keys().isdisjoint(support.operands[node_id])
        )

    def _numpy_may_write(self, value: int, state: int) -> bool:
        support, here = self._support, self._device[value]
        return (
            support.topology.devices[here].kind == "cpu"
            and self._given.isdisjoint((value, state))
            and all(self._device[r] == here for r in support.readers[state])
            and numpy_may_write(support.graph, value, state, support.readers[state])
        )


def _order(
    support: OpSupport, nodes: set[int], states: Mapping[int, int]
) -> tuple[list[int], set[int]]:
    """Return an order in which each node comes behind what it reads, and who writes over a state
    behind those that read it; and those for which there is no such place, whose values have to be
    copied.

    Those that wait for nothing stand together, without barriers between them. Where nodes have
    results beside the states, each is followed by its readers, so that few of them live at once.
    """
    waits = _Waits(support, nodes, states)
    ready = deque(sorted(n for n in nodes if waits.is_free(n)))
    beside = len(nodes) > len(states)
    out: list[int] = []
    copied: set[int] = set()
    while len(out) < len(nodes):
        if not ready:
            ready.append(waits.break_circle())
            copied.add(ready[0])
        out.append(ready.popleft())
        freed = waits.place(out[-1])
        if beside:
            ready.extendleft(reversed(freed))
        else:
            ready.extend(freed)
    return out, copied


class _Waits:
    """What nodes still wait for: behind, what they read; over, who reads what they write over."""

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
        """Nodes of which each waits for the next one; kept, so that no way is gone twice."""

    def is_free(self, node_id: int) -> bool:
        return not self._behind[node_id] and not self._over[node_id]

    def place(self, node_id: int) -> list[int]:
        """Return the nodes that waited for this one alone."""
        self._placed.add(node_id)
        freed: list[int] = []
        for other in sorted(self._after[node_id]):
            if not self.is_free(other):
                self._behind[other].discard(node_id)
                self._over[other].discard(node_id)
                if self.is_free(other):
                    freed.append(other)
        return freed

    def break_circle(self) -> int:
        """Return a node that is to write over nothing, as it waits for others that wait for it;
        now it waits no more.
        """
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
        circle = [last]
        while circle[-1] != before:
            path.popitem()
            circle.append(next(reversed(path)))
        path.popitem()
        # who reads nothing of the others was found by what it writes over
        blocked = max(node_id for node_id in circle if not self._behind[node_id])
        self._over[blocked].clear()
        return blocked
