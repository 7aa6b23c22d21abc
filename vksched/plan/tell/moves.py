"""Moves: what a node would copy in each run if it ran on another device and all else stayed.

    host --input--> d        p --operand--> host --> d        d --result--> host --> reader, caller

A weight is copied once, when the graph is compiled, and counts nothing here: it goes where its
readers are. But one that is streamed from host memory now is streamed elsewhere, too. Two devices
talk by the host. What a node on a device of its own costs beside, a submission and a wait, is not
counted: where the plan has it, it shares them with others.

Complexity: O(operands + readers) each, and O(nodes) for the readers of all. Examples:
tests/plan/test_explain.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...graph import Node
from ..value import PlanValue, value_of


@dataclass(frozen=True, slots=True)
class Moves:
    """Seconds of copies in and out. measured: whether the machine names each link that they take,
    as calibration and machine files do; else links are assumed.
    """

    in_s: float
    in_measured: bool
    out_s: float
    out_measured: bool


def find_moves(plan: PlanValue, node: Node, device: int, readers: Iterable[int]) -> Moves:
    """Returns what a node would copy. readers: the devices that read it."""
    way = _Ways(plan)
    graph, cpu = plan.graph, plan.machine.cpu
    ins: list[tuple[int, int, int]] = []
    for value in dict.fromkeys(value_of(graph, operand, False) for operand in node.inputs):
        root = graph.nodes[graph.root(value)]
        home = cpu if root.op == "input" else plan.placements[root.id].device
        if root.op != "input" and root.id in graph.data and not _streams(plan, node, root):
            continue
        ins.append((home, device, graph.nodes[value].type.device_bytes))
    size = node.type.device_bytes
    targets = {reader for reader in readers if reader != device}
    if any(graph.root(output) == node.id for _, output in graph.outputs):
        targets.add(cpu)
    # the way to the host is taken once, then one more for each reader
    outs = [(device, cpu, size)] if targets - {device} else []
    outs += [(cpu, reader, size) for reader in sorted(targets - {cpu, device})]
    in_s, in_measured = way.seconds(ins)
    out_s, out_measured = way.seconds(outs)
    return Moves(in_s, in_measured, out_s, out_measured)


def _streams(plan: PlanValue, node: Node, weight: Node) -> bool:
    """Whether a weight is streamed to a node on a GPU now. One that is in host memory because its
    reader runs there would move with it.
    """
    cpu = plan.machine.cpu
    return plan.placements[weight.id].device == cpu and plan.placements[node.id].device != cpu


class _Ways:
    def __init__(self, plan: PlanValue) -> None:
        self._machine = plan.machine
        self._names = [spec.name for spec in plan.machine.devices]

    def seconds(self, moves: Iterable[tuple[int, int, int]]) -> tuple[float, bool]:
        """Returns what copies of some bytes take, by the host, and whether each link is named."""
        cpu, links = self._machine.cpu, self._machine.links
        total_s, named = 0.0, True
        for source, target, size_bytes in moves:
            legs = [(source, cpu), (cpu, target)] if source != target else []
            for a, b in legs:
                if a != b:
                    ends = self._names[a], self._names[b]
                    total_s += links.between(*ends).seconds(size_bytes)
                    named = named and links.named(*ends)
        return total_s, named
