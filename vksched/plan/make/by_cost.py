"""By cost: where nodes shall run so that a run takes the least time.

Problem: the order of the devices says nothing about their speeds, and a second device helps only
where what it saves is more than its copies and waits. Method: candidates are compared by what a
simulated run of their splits takes. Each device with all of the work first, then what `schedule`
finds for bundles of nodes. Several devices have to win by a margin. Where costs are estimates it is
a wider one, and a single device has to win by it over the first one.

    graph -> bundles -> tasks and links -> schedule -> wishes --+
    graph -> one device first, then the next ---------> wishes -+-> splits -> simulate -> least time

Memory is not looked at here, but for weights that do not fit: a wish that a device has no room for
goes to the next one, as in placement.py, which keeps pins and states as well.
Complexity: O(edges * candidates). Examples: tests/plan/test_by_cost.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...graph import Node
from ...machine.links import Link
from ...schedule import Task, TaskGraph, Topology, schedule
from ...types import WORD_BYTES
from ...units import count_of, format_seconds
from .. import cost
from ..simulate import Part, make_program, run_program
from ..support import Support
from ..value import value_of
from .bundles import Bundle, find_bundles
from .placement import Caps, Overrides, Wishes, place, resolve_overrides
from .split import split_graph

MARGIN_MEASURED = 0.05
"""By this share a plan has to be faster to win over a simpler one."""
MARGIN_ESTIMATED = 0.25
"""The same where a device's costs are estimates, which are right to a factor."""
LARGE = 2_000
"""Nodes, from which on candidates are weighed as bundles first: a split of all nodes takes time."""
POLICIES = ("auto", "heft", "etf")
"""Schedules of bundles whose plans are simulated; of a large graph the first one."""
GRAINS = 64
"""Bundles of equal size that a graph would be cut into."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What won. name: the candidate. wishes: for placement.py; None: the order of the devices.
    seconds: of a simulated run. note: for the user, "" where there was no choice.
    """

    name: str
    wishes: Wishes | None
    seconds: float
    note: str


NO_CHOICE = Chosen("priority", None, math.nan, "")
"""Nothing to weigh: one device, or a place given for every node."""


def choose(support: Support, overrides: Overrides, with_cpu: bool) -> Chosen:
    """Returns the wishes of the fastest plan. with_cpu: the CPU competes; else it only takes what
    no other device can.
    """
    devices = _competing(support, with_cpu)
    if len(devices) < 2 or not support.computed:
        return NO_CHOICE
    choice = _Choice(support, overrides, devices)
    if all(len(choice.able(node.id)) == 1 for node in choice.free_nodes()):
        return NO_CHOICE
    return choice.best()


def _competing(support: Support, with_cpu: bool) -> tuple[int, ...]:
    specs = support.machine.devices
    gpus = [d for d, spec in enumerate(specs) if spec.kind != "cpu" and not spec.out_of_use]
    return (*gpus, support.machine.cpu) if with_cpu else tuple(gpus)


class _Choice:
    """The candidates for one graph on one machine."""

    def __init__(self, support: Support, overrides: Overrides, devices: tuple[int, ...]) -> None:
        self.support = support
        self.overrides = overrides
        self.devices = devices
        self.machine = support.machine
        self.names = [spec.name for spec in self.machine.devices]
        resolved = resolve_overrides(support.graph, self.machine, overrides)
        self.pins = {node: device for node, (device, _) in resolved.items()}
        self._able: dict[int, tuple[int, ...]] = {}

    def best(self) -> Chosen:
        singles = [(self.seconds(self.first(d)), position, d) for position, d in self.singles()]
        by_order, least = singles[0], min(singles)
        # estimates that are near each other say nothing: then the first device stays
        single = least if self.known or least[0] <= self.limit(by_order[0]) else by_order
        name = f"single:{self.names[single[2]]}"
        won = Chosen(name, self.first(single[2]), single[0], "")
        spread = self.spread()
        if spread is not None and spread.seconds <= self.limit(single[0]):
            won = spread
        return Chosen(won.name, won.wishes, won.seconds, self.tell(won, single[0], single[2]))

    def singles(self) -> list[tuple[int, int]]:
        """Returns the devices that may take all that they can, with their positions; of a large
        graph the first one and the one that is fastest by the sum of its nodes.
        """
        numbered = list(enumerate(self.devices))
        if len(self.support.computed) < LARGE or len(numbered) < 3:
            return numbered
        fastest = min(numbered[1:], key=lambda entry: self.total_s(entry[1]))
        return [numbered[0], fastest]

    @cached_property
    def known(self) -> bool:
        """Whether the costs were measured, or written down for a machine that is not here."""
        specs = [self.machine.devices[d] for d in self.devices]
        written = all(spec.kind != "vulkan" for spec in self.machine.devices)
        return written or all(spec.costs for spec in specs)

    def limit(self, seconds: float) -> float:
        """Returns the time that a less simple plan must not exceed."""
        return seconds * (1 - (MARGIN_MEASURED if self.known else MARGIN_ESTIMATED))

    def tell(self, won: Chosen, single_s: float, single: int) -> str:
        """Returns what a user should know of the choice."""
        text = f"auto: {won.name} takes about {format_seconds(won.seconds)} by simulation"
        if won.seconds < single_s:
            gain = single_s / won.seconds
            return f"{text}, {gain:.3g} times as fast as {self.names[single]} alone"
        others = len(self.devices) - 1
        return f"{text}; {count_of(others, 'other device')} would not make it faster"

    # -- candidates --------------------------------------------------------------------------------

    def first(self, device: int) -> Wishes:
        """Returns the wish for one device before all others."""
        rest = [d for d in range(len(self.names)) if d != device]
        return Wishes((device, *rest), {}, "")

    def spread(self) -> Chosen | None:
        """Returns the best schedule of bundles over the devices, None where it needs only one."""
        seconds = {n.id: self.least_s(n) for n in self.free_nodes()}
        total_s = sum(seconds.values())
        least_s = 2 * min(cost.submission_seconds(self.machine.devices[d]) for d in self.devices)
        bundles = find_bundles(self.support, self.able, seconds, max(total_s / GRAINS, least_s))
        if len(bundles) < 2:
            return None
        tasks, edges = self.tasks(bundles)
        problem, where = TaskGraph(tasks, edges), self.topology()
        few = len(self.support.computed) < LARGE
        found = [schedule(problem, where, name) for name in (POLICIES if few else POLICIES[:1])]
        spread: dict[tuple[str, ...], Chosen] = {}
        for each in found:
            key = tuple(each.device[task.name] for task in tasks)
            if len(set(key)) > 1 and key not in spread:
                wishes = self.wish(bundles, key)
                spread[key] = Chosen(each.policy, wishes, self.seconds(wishes), "")
        return min(spread.values(), key=lambda chosen: chosen.seconds, default=None)

    def wish(self, bundles: Sequence[Bundle], devices: Sequence[str]) -> Wishes:
        """Returns the wish for a device for each bundle."""
        index = {name: number for number, name in enumerate(self.names)}
        on = {n: index[d] for b, d in zip(bundles, devices, strict=True) for n in b.nodes}
        order = (*self.devices, *(d for d in range(len(self.names)) if d not in self.devices))
        return Wishes(order, on, "the fastest plan by simulation has it here")

    def seconds(self, wishes: Wishes) -> float:
        """Returns what a simulated run takes with these wishes."""
        support = self.support
        caps = Caps([None] * len(self.names), [range(0)] * len(self.names))
        placements, _ = place(support, self.overrides, caps, wishes)
        outlines, final_waits = split_graph(support, placements)
        parts = [Part(o.device, o.nodes, o.entering, o.leaving, o.waits) for o in outlines]
        program = make_program(
            support.graph, self.machine, parts, final_waits, support.node_seconds
        )
        return run_program(program).seconds

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
            if pin is not None and can(node, pin):
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

    def least_s(self, node: Node) -> float:
        return min(self.support.node_seconds(node.id, d) for d in self.able(node.id))

    def total_s(self, device: int) -> float:
        """Returns what all nodes take on a device, each on its fastest one where it cannot."""
        return sum(
            self.support.node_seconds(n.id, device)
            if device in self.able(n.id)
            else self.least_s(n)
            for n in self.free_nodes()
        )

    def tasks(self, bundles: Sequence[Bundle]) -> tuple[list[Task], list[tuple[str, str, float]]]:
        """Returns bundles as tasks, with what goes between them."""
        graph, of_node = self.support.graph, dict[int, int]()
        for number, bundle in enumerate(bundles):
            of_node.update(dict.fromkeys(bundle.nodes, number))
        held: set[int] = set()
        crossing: dict[tuple[int, int], dict[int, int]] = {}
        tasks: list[Task] = []
        results = {graph.root(node) for _, node in graph.outputs}
        for number, bundle in enumerate(bundles):
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

    def topology(self) -> Topology:
        """Returns the devices as `schedule` sees them: a value goes from device to host to device,
        and where it arrives one more submission begins.
        """
        links: dict[tuple[str, str], Link] = {}
        used = range(len(self.names))
        for a in used:
            for b in used:
                if a != b:
                    links[self.names[a], self.names[b]] = self.way(a, b)
        memory = {
            spec.name: spec.memory_bytes for spec in self.machine.devices if spec.kind != "cpu"
        }
        return Topology(self.names, links, memory_bytes=memory)

    def way(self, a: int, b: int) -> Link:
        """Returns the link from one device to another by the host."""
        cpu, between = self.machine.cpu, self.machine.links.between
        legs = [between(self.names[a], self.names[cpu])] if a != cpu else []
        legs += [between(self.names[cpu], self.names[b])] if b != cpu else []
        slowness = sum(1 / leg.bytes_per_s for leg in legs)
        latency_s = sum(leg.latency_s for leg in legs)
        latency_s += cost.submission_seconds(self.machine.devices[b])
        return Link(1 / slowness if slowness else math.inf, latency_s)
