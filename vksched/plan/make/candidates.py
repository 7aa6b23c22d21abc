"""Candidates: the ways to carry out a graph that by_cost.py compares.

    each device first, then the next ones --------------------------------> wishes
    graph -> bundles -> tasks and links -> schedules, stages -> devices --> wishes

For latency alone: single devices, and schedules of bundles by a few policies. Other objectives ask
for more: schedules that are made for them, balanced stages for a stream, and stages that spread the
bytes of weights. Of large graphs there are fewer, as each is split and simulated.

Complexity: O(edges) and that of the schedules. Examples: tests/plan/test_by_cost.py,
tests/plan/test_plan_objectives.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...errors import PlanError
from ...graph import Node
from ...machine.links import Link
from ...machine.power import watts_of
from ...schedule import Objective, Task, TaskGraph, Topology, schedule
from ...types import WORD_BYTES
from .. import cost
from ..decision import SINGLE
from ..support import Support
from ..value import value_of
from .bundles import Bundle, find_bundles
from .placement import Overrides, Wishes, resolve_overrides
from .stages import find_stages

LARGE = 2_000
"""Nodes, from which on candidates are weighed as bundles first: a split of all nodes takes time."""
POLICIES = ("auto", "heft", "etf")
"""Schedules of bundles whose plans are simulated; of a large graph the first one."""
GRAINS = 64
"""Bundles of equal size that a graph would be cut into."""
RULE = "the best plan by simulation has it here"
"""What `plan.explain()` says of a node that is where a candidate wants it."""


@dataclass(frozen=True, slots=True)
class Way:
    """A candidate before it is simulated. device: the one that is first in all, or None."""

    name: str
    wishes: Wishes
    device: int | None = None


class Candidates:
    """The candidates for one graph on one machine. devices: those that compete."""

    def __init__(self, support: Support, overrides: Overrides, devices: tuple[int, ...]) -> None:
        self.support = support
        self.devices = devices
        self.machine = support.machine
        self.names = [spec.name for spec in self.machine.devices]
        resolved = resolve_overrides(support.graph, self.machine, overrides)
        graph = support.graph
        self.pins = {
            node: device
            for node, (device, _) in resolved.items()
            if graph.nodes[node].op not in ("input", "constant")  # they are where they are read
        }
        self._able: dict[int, tuple[int, ...]] = {}

    @property
    def few(self) -> bool:
        """Whether the graph is small enough for many candidates."""
        return len(self.support.computed) < LARGE

    @property
    def bound(self) -> bool:
        """Whether there is nothing to choose, as the user has placed all nodes."""
        return all(map(self.placed, self.free_nodes()))

    def singles(self) -> list[Way]:
        """Returns the devices that may take all that they can; of a large graph the first one and
        the one that is fastest by the sum of its nodes.
        """
        wanted = list(self.devices)
        if not self.few and len(wanted) > 2:
            wanted = [wanted[0], min(wanted[1:], key=self.total_s)]
        out: list[Way] = []
        for device in wanted:
            out.append(self._single(device, range(len(self.names))))
        return out

    def alone(self, device: int) -> Way:
        """Returns the way that is left where there is no other device: what it cannot run or hold
        goes to the CPU, not to the next device.
        """
        return self._single(device, (self.machine.cpu, *range(self.machine.cpu)))

    def _single(self, device: int, then: Iterable[int]) -> Way:
        order = (device, *(d for d in then if d != device))
        return Way(f"{SINGLE}{self.names[device]}", Wishes(order, {}, ""), device)

    def takes_all(self, device: int) -> bool:
        """Whether a device can run, and has room for the weights of, all that is not placed, and
        streams no weight that the user keeps in host memory: another device may do so.
        """
        graph, cpu = self.support.graph, self.machine.cpu
        weights_bytes = WORD_BYTES * sum(graph.words[weight] for weight in graph.data)
        roomy = weights_bytes <= self.machine.devices[device].memory_bytes
        if any(at == cpu and graph.nodes[n].op == "weight" for n, at in self.pins.items()):
            return False
        return (roomy or device == cpu) and all(
            device in self.able(n.id) or self.placed(n) for n in self.free_nodes()
        )

    def spread(self, objective: Objective) -> Iterator[Way]:
        """Yields ways over several devices, each once."""
        if len(self.bundles) < 2 or len(self.devices) < 2:
            return
        known: set[tuple[str, ...]] = set()
        for name, devices in self._found(objective):
            key = tuple(devices)
            if len(set(key)) > 1 and key not in known:
                known.add(key)
                yield Way(name, self.wish(key))

    def _found(self, objective: Objective) -> Iterator[tuple[str, Sequence[str]]]:
        tasks, edges = self.tasks
        problem = TaskGraph(tasks, edges)

        def by(policy: str, goal: str | Objective = "latency") -> Iterator[tuple[str, list[str]]]:
            try:
                found = schedule(problem, self.topology(), policy, goal)
            except PlanError:  # not all of it fits: placement finds what stays in host memory
                found = schedule(problem, self.topology(limited=False), policy, goal)
            word = goal if isinstance(goal, str) else goal.word or "the mix"
            policy = found.policy.replace(SINGLE, "most on ")  # some of it is elsewhere
            name = policy if goal == "latency" else f"schedule for {word}"
            yield name, [found.device[task.name] for task in tasks]

        for policy in POLICIES if self.few else POLICIES[:1]:
            yield from by(policy)
        for word, _ in objective.weights:
            if word != "latency":
                yield from by("auto", word)
        if not objective.word:
            yield from by("auto", objective)
        if objective.asks("throughput"):
            yield from self._stages("stages", [task.cost_s for task in tasks], self.devices)
        if objective.asks("memory"):
            gpus = [d for d in self.devices if d != self.machine.cpu]
            held = [dict.fromkeys(task.cost_s, float(task.memory_bytes)) for task in tasks]
            yield from self._stages("stages of equal bytes", held, gpus)

    def _stages(
        self, name: str, loads: Sequence[Mapping[str, float]], devices: Sequence[int]
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields stages over the fastest two devices, and over all."""
        ranked = sorted(devices, key=self.total_s)
        for count in dict.fromkeys((min(2, len(ranked)), len(ranked))):
            found = find_stages(loads, [self.names[d] for d in ranked[:count]])
            if found is not None:
                yield name if count == len(ranked) else f"{name} of {count}", found

    def wish(self, devices: Sequence[str]) -> Wishes:
        """Returns the wish for a device for each bundle."""
        index = {name: number for number, name in enumerate(self.names)}
        on = {n: index[d] for b, d in zip(self.bundles, devices, strict=True) for n in b.nodes}
        order = (*self.devices, *(d for d in range(len(self.names)) if d not in self.devices))
        return Wishes(order, on, RULE)

    # -- a graph as tasks --------------------------------------------------------------------------

    def free_nodes(self) -> list[Node]:
        """Returns the nodes to be placed: states and what writes them stay together elsewhere."""
        states = self.support.graph.states
        return [n for n in self.support.computed if n.id not in states]

    def able(self, node_id: int) -> tuple[int, ...]:
        """Returns the devices that may run a node: the CPU, too, where no other one can."""
        found = self._able.get(node_id)
        if found is None:
            node, can = self.support.graph.nodes[node_id], self.support.can
            pin = self.pin(node)
            if pin is not None and self.placed(node):
                found = (pin,)
            else:
                found = tuple(d for d in self.devices if can(node, d)) or (self.machine.cpu,)
            self._able[node_id] = found
        return found

    def pin(self, node: Node) -> int | None:
        """Returns the device that the user gave a node, or the heaviest of its placed weights."""
        graph = self.support.graph
        if node.id in self.pins or not self.pins:
            return self.pins.get(node.id)
        placed = [w for w in dict.fromkeys(graph.leaves_behind(node)) if w in self.pins]
        return self.pins[max(placed, key=lambda w: graph.words[w])] if placed else None

    def placed(self, node: Node) -> bool:
        """Whether a node has its device from the user, one that can run it."""
        pin = self.pin(node)
        return pin is not None and self.support.can(node, pin)

    def least_s(self, node: Node) -> float:
        """Returns the seconds of a node on the device that is fastest at it."""
        return min(self.support.node_seconds(node.id, d) for d in self.able(node.id))

    def total_s(self, device: int) -> float:
        """Returns what all nodes take on a device, each on its fastest one where it cannot."""
        return sum(
            self.support.node_seconds(n.id, device)
            if device in self.able(n.id)
            else self.least_s(n)
            for n in self.free_nodes()
        )

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """The nodes that are placed as one, in topological order."""
        seconds = {n.id: self.least_s(n) for n in self.free_nodes()}
        total_s = sum(seconds.values())
        least_s = 2 * min(cost.submission_seconds(self.machine.devices[d]) for d in self.devices)
        return find_bundles(self.support, self.able, seconds, max(total_s / GRAINS, least_s))

    @cached_property
    def tasks(self) -> tuple[list[Task], list[tuple[str, str, float]]]:
        """Bundles as tasks, with what goes between them."""
        graph, of_node = self.support.graph, dict[int, int]()
        for number, bundle in enumerate(self.bundles):
            of_node.update(dict.fromkeys(bundle.nodes, number))
        held = set[int]().union(*(self.support.resident.values()))  # it takes no more room
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
                self.names[d]: sum(self.support.node_seconds(n, d) for n in bundle.nodes)
                + self.host_s(d, sum(given.values()), taken)
                for d in bundle.able
            }
            memory = sum(graph.words[w] * WORD_BYTES for w in weights - held)
            held |= weights
            tasks.append(Task(str(number), seconds, memory))
        edges = [(str(a), str(b), float(sum(sizes.values()))) for (a, b), sizes in crossing.items()]
        return tasks, edges

    def host_s(self, device: int, given_bytes: float, taken_bytes: float) -> float:
        """Returns what values of the caller take on their way to a device and back."""
        if device == self.machine.cpu:
            return 0.0
        host, name, between = self.names[-1], self.names[device], self.machine.links.between
        there = between(host, name).seconds(given_bytes) if given_bytes else 0.0
        return there + (between(name, host).seconds(taken_bytes) if taken_bytes else 0.0)

    def topology(self, limited: bool = True) -> Topology:
        """Returns the devices as `schedule` sees them: a value goes from device to host to device,
        and where it arrives one more submission begins. limited: with the memory that they have.
        """
        links: dict[tuple[str, str], Link] = {}
        used = range(len(self.names))
        for a in used:
            for b in used:
                if a != b:
                    links[self.names[a], self.names[b]] = self.way(a, b)
        memory = {
            spec.name: spec.memory_bytes
            for spec in self.machine.devices
            if limited and spec.kind != "cpu"
        }
        watts = {spec.name: watts_of(spec) for spec in self.machine.devices}
        return Topology(self.names, links, memory_bytes=memory, watts=watts)

    def way(self, a: int, b: int) -> Link:
        """Returns the link from one device to another by the host."""
        link = self.machine.way(a, b)
        begins_s = cost.submission_seconds(self.machine.devices[b])
        return Link(link.bytes_per_s, link.latency_s + begins_s)
