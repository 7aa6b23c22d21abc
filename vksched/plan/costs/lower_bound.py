"""Lower bound: a time that no plan of a graph on its devices can beat.

Problem: a plan that is the best of a few candidates may still be far from the optimum. Method: the
nodes become tasks of `vksched.schedule`, without any other cost of a run: no submission, no fence,
no transfer from or to the caller. A transfer between two devices uses their links, through the
host. `schedule` computes lower bounds for the tasks: the longest path, the work spread over all
devices, and the work that only one device supports. A node may run on each competing device that
supports it, and on the device that the plan chose.

    bound    |== a ==|== b ==|== d ==|           longest path, or the area
    plan     copy |== a ==| wait |== b ==| ...   never below it

Beyond `MAX_PATH_NODES` nodes the longest path is skipped because it takes long to compute: the area
remains. Beyond `WIDE` devices of several hosts, transfers take no time.

Complexity: edges * devices. Examples: tests/plan/test_plan_bound.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...schedule import Platform, Task, TaskGraph
from ...schedule.model.lower_bounds import find_bounds
from ...schedule.model.problem import make_problem
from ...schedule.model.task_graph import MOST as MAX_AMOUNT
from ...topology.links import Link
from ...topology.power import watts_of
from ...topology.topology import Topology
from ..types.plan_types import PlanValue, value_of
from .op_support import OpSupport

MAX_PATH_NODES = 20_000
"""Maximum number of nodes for which the longest path is computed."""
WIDE = 128
"""Maximum number of devices of several hosts for which links between them are considered."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound, by simulation, on any placement of the plan's nodes on its devices.

    by: the largest of the bounds, "path", "area" or "pinned".
    """

    latency_s: float
    period_s: float
    energy_j: float
    by: str

    def of(self, word: str) -> float | None:
        """Return the bound of an objective by its name, or None if it is unknown."""
        known = {"latency": self.latency_s, "throughput": self.period_s, "energy": self.energy_j}
        return known.get(word)

    def as_dict(self) -> dict[str, Any]:
        """Return the bound as plain data."""
        return {
            "latency_s": self.latency_s,
            "period_s": self.period_s,
            "energy_j": self.energy_j,
            "by": self.by,
        }


def find_bound(plan: PlanValue) -> Bound:
    """Return the lower bounds of a plan. All are bounds of one run, except the period."""
    topology = plan.topology
    devices = _devices(plan)
    problem = make_problem(_tasks(plan), _topology(topology, devices))
    bounds = find_bounds(problem)
    each = {"path": bounds.path_s, "area": bounds.area_s, "pinned": bounds.pinned_s}
    # a GPU that is opened twice would count its idle watts twice in the topology
    first = {peers[0] for peers in topology.memory_nodes} | {topology.cpu}
    twice = sum(watts_of(topology.devices[d]).idle for d in devices if d not in first)
    return Bound(
        latency_s=bounds.value_s,
        period_s=max(bounds.area_s, bounds.pinned_s),
        energy_j=max(0.0, bounds.energy_j - twice * bounds.value_s),
        by=max(each, key=lambda word: each[word]),
    )


def _tasks(plan: PlanValue) -> TaskGraph:
    """Return the nodes that run as tasks, with the transfers between tasks on different devices."""
    graph, topology = plan.graph, plan.topology
    support = OpSupport(graph, topology)
    names = [spec.name for spec in topology.devices]
    compete = _competing_devices(plan)
    shared: dict[tuple[int, tuple[int, ...]], dict[str, float]] = {}
    tasks: list[Task] = []
    runs = {n for split in plan.splits for n in split.nodes}
    for node in (n for n in support.computed if n.id in runs):
        here = plan.placements[node.id].device
        candidate_devices = tuple(
            d for d in sorted(compete | {here}) if d == here or _may(support, node.id, d, compete)
        )
        key = graph.signatures[node.id], candidate_devices
        if key not in shared:  # tasks with one mapping share a row
            shared[key] = {
                names[d]: min(support.node_seconds(node.id, d), MAX_AMOUNT)
                for d in candidate_devices
            }
        tasks.append(Task(str(node.id), shared[key]))
    edges: dict[tuple[str, str], float] = {}
    for node_id in runs if len(runs) <= MAX_PATH_NODES else ():
        for operand in graph.nodes[node_id].inputs:
            maker = graph.view_bases[operand]
            if maker in runs and maker != node_id:
                value = value_of(graph, operand, False)
                size = float(graph.nodes[value].type.device_bytes)
                ends = str(maker), str(node_id)
                edges[ends] = max(size, edges.get(ends, 0.0))
    return TaskGraph(tasks, [(a, b, size) for (a, b), size in sorted(edges.items())])


def _may(support: OpSupport, node_id: int, device: int, compete: frozenset[int]) -> bool:
    return device in compete and support.supports(support.graph.nodes[node_id], device)


def _competing_devices(plan: PlanValue) -> frozenset[int]:
    """Return the devices that may run a node: the competing ones, else the ones with work."""
    names = [spec.name for spec in plan.topology.devices]
    if plan.decision is not None:
        return frozenset(names.index(name) for name in plan.decision.devices)
    used = set(plan.working)
    if len(plan.topology.hosts) > 1:  # most hosts may have no part in it
        return frozenset(used)
    gpus = {d for d, spec in enumerate(plan.topology.devices) if spec.kind != "cpu"}
    return frozenset(gpus | used)


def _devices(plan: PlanValue) -> list[int]:
    """Return the devices that the bound considers."""
    if len(plan.topology.hosts) == 1:
        return list(range(len(plan.topology.devices)))
    return sorted(_competing_devices(plan) | set(plan.working))


def _topology(topology: Topology, devices: Sequence[int]) -> Platform:
    names = {d: topology.devices[d].name for d in devices}
    wide = len(topology.hosts) > 1 and len(devices) > WIDE
    links = {
        (names[a], names[b]): replace(way, latency_s=min(way.latency_s, MAX_AMOUNT))
        for a in devices
        for b in (() if wide else devices)
        if a != b
        for way in (topology.route(a, b),)
    }
    watts = {names[d]: watts_of(topology.devices[d]) for d in devices}
    free = Link(math.inf, 0.0)
    return Platform(names.values(), links, default_link=free if wide else None, watts=watts)
