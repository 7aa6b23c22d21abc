"""Move costs: the copies of each run if one node ran on another device and all others stayed.

    host --input--> d        p --operand--> host --> d        d --result--> host --> reader, caller

A weight is copied once, at compile time, to the devices of its readers, and has no cost here. A
weight that is streamed from host memory would be streamed to the other device as well. Transfers
between two devices go through the host. A node on a device of its own also costs a submission and a
wait. These are not counted, because in the plan the node shares them with others.

Complexity: O(operands + readers) each, and O(nodes) for the readers of all. Examples:
tests/plan/test_explain.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...ir.graph import Node
from ...topology.links import Link
from ...topology.topology import Topology
from ..types.plan_types import PlanValue, value_of


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """Seconds of copies in and out.

    measured: True if the topology names each link on the way, as calibration and topology files do;
    other links are assumed.
    """

    in_s: float
    in_measured: bool
    out_s: float
    out_measured: bool


def find_moves(plan: PlanValue, node: Node, device: int, readers: Iterable[int]) -> MoveCosts:
    """Return the copies of a node on a device. readers: the devices that read its result."""
    graph, topology = plan.graph, plan.topology
    ins: list[_Leg] = []
    for value in dict.fromkeys(value_of(graph, operand, False) for operand in node.inputs):
        root = graph.nodes[graph.view_base(value)]
        home = topology.cpu if root.op == "input" else plan.placements[root.id].device
        size_bytes = graph.nodes[value].type.device_bytes
        if root.op == "input" or root.id not in graph.data:
            legs = topology.legs(home, device) if home != device else []
        elif _streams(plan, node, root):  # from the memory of the host that needs it
            legs = _in(topology, device)
        else:
            continue
        ins += [(leg, size_bytes) for leg in legs]
    targets = {reader for reader in readers if reader != device}
    if any(graph.view_base(output) == node.id for _, output in graph.outputs):
        targets.add(topology.cpu)
    outs = [(leg, node.type.device_bytes) for leg in _out(topology, device, targets - {device})]
    return MoveCosts(*_seconds(topology, ins), *_seconds(topology, outs))


def _streams(plan: PlanValue, node: Node, weight: Node) -> bool:
    """Return True if a weight is streamed to a node on a GPU. A weight that is in host memory for a
    reader on the CPU would move with that reader.
    """
    is_cpu, placements = plan.topology.is_cpu, plan.placements
    return is_cpu(placements[weight.id].device) and not is_cpu(placements[node.id].device)


_Leg = tuple[tuple[str, str, Link], int]
"""A link with its ends, and the bytes that it transfers."""


def _in(topology: Topology, device: int) -> list[tuple[str, str, Link]]:
    """Return the link from a host to its device; empty for its CPU."""
    if topology.is_cpu(device):
        return []
    host = topology.memory_of(topology.host_of(device))
    return [(host, topology.devices[device].name, topology.link_in(device))]


def _out(topology: Topology, device: int, targets: set[int]) -> list[tuple[str, str, Link]]:
    """Return the links from a device to others: once to its host and to each other host, then one
    for each reading device.
    """
    if not targets:
        return []
    out: list[tuple[str, str, Link]] = []
    host = topology.host_of(device)
    memory = topology.memory_of(host)
    if not topology.is_cpu(device):
        out.append((topology.devices[device].name, memory, topology.link_out(device)))
    for other in sorted({topology.host_of(target) for target in targets} - {host}):
        out.append((memory, topology.memory_of(other), topology.link_between(host, other)))
    return [*out, *(leg for target in sorted(targets) for leg in _in(topology, target))]


def _seconds(topology: Topology, legs: Iterable[_Leg]) -> tuple[float, bool]:
    """Return the seconds of some transfers, and whether the topology names each link."""
    total_s, named = 0.0, True
    for (source, target, link), size_bytes in legs:
        total_s += link.seconds(size_bytes)
        named = named and topology.links.named(source, target)
    return total_s, named
