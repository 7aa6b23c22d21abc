"""Candidates: the strategies for running a graph that select.py compares.

    each device first, then the next ones -----------------------------------> hints
    graph -> node groups -> task_graph.py: tasks --> schedules, stages -> devices --> hints

For latency alone: single devices, and schedules of node groups by a few policies. Other objectives
add schedules for the objective, balanced stages for throughput, and stages that spread the bytes of
weights and states. For memory, a graph is also grouped by bytes: node groups that are worth a
submission may be too large to spread. Large graphs have fewer candidates, because each is split and
simulated.

Complexity: O(edges) and that of the schedules. Examples: tests/planner/test_select.py,
tests/planner/test_plan_objectives.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...common.dtypes import WORD_BYTES
from ...common.errors import PlanError
from ...ir.graph import Node
from ...plan.costs import node_cost
from ...plan.costs.op_support import OpSupport
from ...plan.types.decision import SINGLE
from ...plan.types.placement_overrides import Overrides, resolve_overrides
from ...schedule import Objective, Platform, Task, TaskGraph, schedule
from ...schedule.local_search.step_budget import budget_by_size
from ...schedule.model.task_graph import MOST as MAX_AMOUNT
from ...topology.host_names import DRIVER
from ...topology.links import Link
from ...topology.power import watts_of
from ..placement.candidate_devices import PlacementHints
from ..placement.node_groups import find_node_groups
from .pipeline_stages import find_stages
from .task_graph import Partition

LARGE = 2_000
"""Number of nodes from which on a graph has few candidates, to save planning time."""
POLICIES = ("auto", "heft", "etf")
"""Policies whose schedules of node groups are simulated; only the first one for a large graph."""
SCHEDULE_SHARE = 0.4
"""Fraction of the time budget that a schedule gets if improve.py improves the plan afterwards."""
GRAINS = 64
"""Target number of node groups of equal size."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A candidate before simulation; `device` runs as much as it can, if not None."""

    name: str
    hints: PlacementHints
    device: int | None = None


Loads = Sequence[Mapping[str, float]]
"""Seconds by device, for each node group in order."""


class Candidates:
    """The candidates for one graph on one machine; `devices` are those that compete."""

    def __init__(self, support: OpSupport, overrides: Overrides, devices: tuple[int, ...]) -> None:
        self.support = support
        self.devices = devices
        self.topology = support.topology
        self.names = [spec.name for spec in self.topology.devices]
        self._totals: dict[int, float] = {}
        resolved = resolve_overrides(support.graph, self.topology, overrides)
        graph = support.graph
        self.pins = {
            node: device
            for node, (device, _) in resolved.items()
            if graph.nodes[node].op not in ("input", "constant")  # these follow their readers
        }
        self._candidate_devices: dict[int, tuple[int, ...]] = {}
        self._cpus = tuple(d for d in self.topology.order if self.topology.is_cpu(d))
        if len(self.topology.hosts) > 1 and len(devices) > GRAINS:
            self._take_fastest()

    def _take_fastest(self) -> None:
        """Keep the driver's devices and the fastest others, at most as many as there are node
        groups; of equal ones the first, so that they are on few hosts.
        """
        alike, host_of, all_devices = self.support.alike, self.topology.host_of, self.devices
        self.devices = tuple(dict.fromkeys(alike[d] for d in all_devices))
        seconds = {d: self.total_s(d) for d in self.devices}
        ranked = sorted(all_devices, key=lambda d: (host_of(d) != DRIVER, seconds[alike[d]]))
        own = sum(host_of(d) == DRIVER for d in all_devices)
        competing = {*ranked[: max(own, GRAINS)], *self.pins.values()}
        hosts = {DRIVER, *map(host_of, competing)}
        self.devices = tuple(d for d in all_devices if d in competing)
        self._cpus = tuple(d for d in self._cpus if host_of(d) in hosts)
        self._candidate_devices.clear()
        self._totals.clear()

    @property
    def few(self) -> bool:
        """True if the graph is small enough for many candidates."""
        return len(self.support.computed) < LARGE

    @property
    def bound(self) -> bool:
        """True if there is no choice, because the user has placed all nodes."""
        return all(map(self.placed, self.free_nodes()))

    def singles(self) -> list[Strategy]:
        """Return a strategy for each device that runs all it can; for a large graph only the first
        device and the fastest one by the sum of its nodes.
        """
        wanted = self._unlike()
        if not self.few and len(wanted) > 2:
            wanted = [wanted[0], min(wanted[1:], key=self.total_s)]
        out: list[Strategy] = []
        for device in wanted:
            out.append(self._single(device, self.topology.order))
        return out

    def _unlike(self) -> list[int]:
        """Return the competing devices; of equal devices of other hosts only the first."""
        topology, known = self.topology, set[object]()
        out: list[int] = []
        for device in self.devices:
            host = topology.host_of(device)
            own = topology.cpu_of(device)
            key: object = device
            if host != DRIVER and device not in self.pins.values():
                ways = topology.link_in(device), topology.link_out(device)
                wires = topology.link_between(DRIVER, host), topology.link_between(host, DRIVER)
                cpu = None if own is None else self.support.alike[own]
                key = self.support.alike[device], cpu, ways, wires
            if key not in known:
                known.add(key)
                out.append(device)
        return out

    def alone(self, device: int) -> Strategy:
        """Return the strategy of a device without other GPUs: nodes that it cannot run or hold go
        to the CPU of its host.
        """
        own, cpu = self.topology.cpu_of(device), self.topology.cpu
        return self._single(device, (cpu if own is None else own, cpu, *self.topology.order))

    def _single(self, device: int, others: Iterable[int]) -> Strategy:
        order = tuple(dict.fromkeys((device, *others)))
        return Strategy(f"{SINGLE}{self.names[device]}", PlacementHints(order, {}, ""), device)

    def takes_all(self, device: int) -> bool:
        """Return True if a device can run all nodes that are not placed, has memory for their
        weights and states, and streams no weight that the user pinned to host memory.
        """
        graph, is_cpu = self.support.graph, self.topology.is_cpu
        held = (*graph.data, *graph.initial)
        held_bytes = WORD_BYTES * sum(graph.words[each] for each in held)
        roomy = held_bytes <= self.topology.devices[device].memory_bytes
        if any(is_cpu(at) and graph.nodes[n].op == "weight" for n, at in self.pins.items()):
            return False
        return (roomy or device == self.topology.cpu) and all(
            device in self.candidate_devices(n.id) or self.placed(n) for n in self.free_nodes()
        )

    def spread(self, objective: Objective) -> Iterator[Strategy]:
        """Yield strategies over several devices, each once."""
        if len(self.devices) < 2:
            return
        known: set[tuple[Partition, tuple[str, ...]]] = set()
        for name, cut, devices in self._found(objective):
            key = cut, tuple(devices)
            if len(set(devices)) > 1 and key not in known:
                known.add(key)
                yield Strategy(name, cut.hints_for(devices))

    def _found(self, objective: Objective) -> Iterator[tuple[str, Partition, Sequence[str]]]:
        cut = self.cut
        if len(cut.node_groups) > 1:
            for policy in POLICIES if self.few else POLICIES[:1]:
                yield self._by(cut, policy)
            for word, _ in objective.weights:
                if word not in ("latency", "memory"):
                    yield self._by(cut, "auto", word)
            if not objective.word:
                yield self._by(cut, "auto", objective)
            if objective.asks("throughput"):
                seconds = [task.cost_s for task in cut.tasks[0]]
                yield from self._stages("stages", cut, seconds, self.devices)
        if objective.asks("memory"):
            yield from self._for_memory()

    def _for_memory(self) -> Iterator[tuple[str, Partition, Sequence[str]]]:
        cut = self.cut_by_bytes
        if len(cut.node_groups) < 2:
            return
        yield self._by(self.cut if len(self.cut.node_groups) > 1 else cut, "auto", "memory")
        gpus = [d for d in self.devices if not self.topology.is_cpu(d)]
        held = [dict.fromkeys(task.cost_s, float(task.memory_bytes)) for task in cut.tasks[0]]
        yield from self._stages("stages of equal bytes", cut, held, gpus)

    def _by(
        self, cut: Partition, policy: str, goal: str | Objective = "latency"
    ) -> tuple[str, Partition, list[str]]:
        """Return a schedule of node groups, with its name and the device of each group."""
        tasks, edges = cut.tasks
        problem = TaskGraph(tasks, edges)
        budget_s = None
        if goal == "latency" and self.few:  # the rest of the budget is for improve.py
            budget_s = SCHEDULE_SHARE * budget_by_size(len(tasks), len(self._used))
        try:
            found = schedule(problem, self.platform(), policy, goal, budget_s)
        except PlanError:  # it does not fit: placement will leave weights in host memory
            found = schedule(problem, self.platform(limited=False), policy, goal, budget_s)
        word = goal if isinstance(goal, str) else goal.word or "the mix"
        devices = [found.device[task.name] for task in tasks]
        policy = _name_of(found.policy, tasks, devices)
        name = policy if goal == "latency" else f"schedule for {word}"
        return name, cut, devices

    def _stages(
        self, name: str, cut: Partition, loads: Loads, devices: Sequence[int]
    ) -> Iterator[tuple[str, Partition, list[str]]]:
        """Yield stages over the fastest two devices, and over all."""
        ranked = sorted(devices, key=self.total_s)
        for count in dict.fromkeys((min(2, len(ranked)), len(ranked))):
            found = find_stages(loads, [self.names[d] for d in ranked[:count]])
            if found is not None:
                yield name if count == len(ranked) else f"{name} of {count}", cut, found

    # -- nodes and node groups ---------------------------------------------------------------------

    def free_nodes(self) -> list[Node]:
        """Return the nodes to place; states follow their readers."""
        states = self.support.graph.states
        return [n for n in self.support.computed if n.id not in states]

    def candidate_devices(self, node_id: int) -> tuple[int, ...]:
        """Return the devices that may run a node; CPUs only if no other device can."""
        found = self._candidate_devices.get(node_id)
        if found is None:
            node, supports = self.support.graph.nodes[node_id], self.support.supports
            pin = self.pin(node)
            if pin is not None and self.placed(node):
                found = (pin,)
            else:
                found = tuple(d for d in self.devices if supports(node, d))
                found = found or tuple(d for d in self._cpus if supports(node, d))
            self._candidate_devices[node_id] = found
        return found

    def pin(self, node: Node) -> int | None:
        """Return the device of the user pin of a node, or of its heaviest pinned weight."""
        graph = self.support.graph
        if node.id in self.pins or not self.pins:
            return self.pins.get(node.id)
        placed = [w for w in dict.fromkeys(graph.transitive_leaves(node)) if w in self.pins]
        return self.pins[max(placed, key=lambda w: graph.words[w])] if placed else None

    def placed(self, node: Node) -> bool:
        """Return True if the user pinned a node to a device that supports it."""
        pin = self.pin(node)
        return pin is not None and self.support.supports(node, pin)

    def least_s(self, node: Node) -> float:
        """Return the seconds of a node on its fastest device."""
        return min(self.support.node_seconds(node.id, d) for d in self.candidate_devices(node.id))

    def total_s(self, device: int) -> float:
        """Return the seconds of all nodes on a device, of unsupported ones on their fastest."""
        found = self._totals.get(device)
        if found is None:
            found = self._totals[device] = sum(
                self.support.node_seconds(n.id, device)
                if device in self.candidate_devices(n.id)
                else self.least_s(n)
                for n in self.free_nodes()
            )
        return found

    @cached_property
    def cut(self) -> Partition:
        """The graph as node groups, each worth a submission."""
        seconds = {n.id: self.least_s(n) for n in self.free_nodes()}
        total_s = sum(seconds.values())
        least_s = 2 * min(
            node_cost.submission_seconds(self.topology.devices[d]) for d in self.devices
        )
        return self._cut(seconds, max(total_s / GRAINS, least_s))

    @cached_property
    def cut_by_bytes(self) -> Partition:
        """The graph as node groups of equal bytes of weights and states. A group may be shorter
        than a submission, which costs no memory.
        """
        graph = self.support.graph
        held = set[int]().union(*(self.support.resident.values()))
        sizes: dict[int, float] = {}
        for node in self.free_nodes():
            roots = {graph.view_bases[operand] for operand in node.inputs}
            new = roots & (graph.data.keys() | graph.initial.keys()) - held
            sizes[node.id] = float(sum(graph.words[w] * WORD_BYTES for w in new))
            held |= new
        return self._cut(sizes, sum(sizes.values()) / GRAINS)

    def _cut(self, sizes: Mapping[int, float], grain: float) -> Partition:
        pinned_devices, states = self._state_placement, self.support.graph.initial.keys()
        read = {operand for n in sizes for operand in self.support.operands[n]}
        movable = dict.fromkeys(read & states - pinned_devices.keys(), 0.0)
        ordered = dict(sorted({**movable, **sizes}.items()))
        node_groups = find_node_groups(self.support, self.candidate_devices, ordered, grain)
        return Partition(self.support, self.devices, node_groups, pinned_devices)

    @cached_property
    def _state_placement(self) -> Mapping[int, int]:
        """The devices of states without a choice: an earlier graph or the user has placed them, or
        only one device can hold them.
        """
        graph, found = self.support.graph, dict(self.support.state_devices)
        for state in graph.initial.keys() - found.keys():
            devices = self.candidate_devices(state)
            if len(devices) == 1:
                found[state] = devices[0]
        return found

    def platform(self, limited: bool = True) -> Platform:
        """Return the devices as `schedule` models them: a value goes from device to host to device,
        and a submission follows. limited: with the memory that pinned states leave.
        """
        specs, used, links = self.topology.devices, self._used, self._links
        held_bytes: Counter[int] = Counter()
        for state, device in self._state_placement.items():
            held_bytes[device] += self.support.missing_bytes(state, device)
        memory = {
            specs[d].name: max(0, specs[d].memory_bytes - held_bytes[d])
            for d in used
            if limited and d != self.topology.cpu
        }
        watts = {specs[d].name: watts_of(specs[d]) for d in used}
        return Platform([specs[d].name for d in used], links, memory_bytes=memory, watts=watts)

    @cached_property
    def _used(self) -> list[int]:
        """The devices that a schedule may use: the competing ones and CPUs."""
        if len(self.topology.hosts) == 1:
            return list(range(len(self.names)))
        return sorted({*self.devices, *self._cpus, *self.pins.values()})

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        names = self.names
        return {
            (names[a], names[b]): self.way(a, b) for a in self._used for b in self._used if a != b
        }

    def way(self, a: int, b: int) -> Link:
        """Return the link from one device to another through the host."""
        link = self.topology.route(a, b)
        begins_s = node_cost.submission_seconds(self.topology.devices[b])
        return Link(link.bytes_per_s, min(link.latency_s + begins_s, MAX_AMOUNT))


def _name_of(policy: str, tasks: Sequence[Task], devices: Sequence[str]) -> str:
    """Return the name of a schedule; a schedule by a single device may run most nodes elsewhere."""
    if not policy.startswith(SINGLE):
        return policy
    load: dict[str, float] = dict.fromkeys(devices, 0.0)
    for task, device in zip(tasks, devices, strict=True):
        load[device] += task.cost_s[device]
    return f"most on {max(load, key=lambda device: load[device])}"
