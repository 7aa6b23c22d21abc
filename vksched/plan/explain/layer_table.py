"""Layers: the devices of each layer of a model, by the names of its nodes.

Problem: readers think of a plan of hundreds of nodes in layers. Method: the layer of a node is its
name up to the first number; a node without one is a layer of its own. Neighbours on the same
devices become one line.

    layer.0.wide, layer.0.sum, layer.1.wide, layer.1.sum, head
        -> layer.0 .. layer.1  4 nodes  fast  120 us
           head                1 node   small   3 us

Complexity: O(nodes). Examples: tests/plan/test_layers.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...common.formatting import count_of, format_bytes, format_seconds
from ..costs import node_cost
from ..types.plan_types import PlanValue

SHOWN = 24
"""Maximum number of lines of a text."""
_LAYER = re.compile(r"(.*?(?:[./_]|[A-Za-z])\d+)(?=[./])")
_NUMBER_ALONE = re.compile(r"(.*?[./]\d+)(?=[./])")


@dataclass(frozen=True, slots=True)
class Layers:
    """Consecutive layers that run on the same devices.

    first, last: their names. nodes: their number on each device. seconds: the predicted time of the
    nodes on each device. weight_bytes: bytes of the weights that they are the first to read.
    """

    first: str
    last: str
    count: int
    nodes: Mapping[str, int]
    seconds: Mapping[str, float]
    weight_bytes: int

    @property
    def name(self) -> str:
        """The name of the layer, or a range of names."""
        return self.first if self.first == self.last else f"{self.first} .. {self.last}"

    def as_dict(self) -> dict[str, Any]:
        """Return the layers as plain data for `json.dumps`."""
        return {
            "first": self.first,
            "last": self.last,
            "layers": self.count,
            "nodes": dict(self.nodes),
            "seconds": dict(self.seconds),
            "weight_bytes": self.weight_bytes,
        }


def layer_of(name: str) -> str:
    """Return the layer of a node: its name up to the first part that is a number or ends in one, or
    the whole name if no part before the last one does.

    A part that is a number takes precedence over one that ends in a number: the layer of
    "/layer1/layer1.0/conv" is "/layer1/layer1.0".
    """
    found = _NUMBER_ALONE.match(name) or _LAYER.match(name)
    return found[1] if found else name


def find_layers(plan: PlanValue) -> tuple[Layers, ...]:
    """Return the devices of all layers of a plan, in the order of the graph."""
    graph, specs = plan.graph, plan.topology.devices
    where = {node: split.device for split in plan.splits for node in split.nodes}
    known: dict[tuple[int, int], float] = {}
    read: set[int] = set()
    layers: dict[str, _Layer] = {}
    for node_id in sorted(where):
        device, call = where[node_id], graph.signatures[node_id]
        if (call, device) not in known:
            known[call, device] = node_cost.node_seconds(specs[device], graph, graph.nodes[node_id])
        weights = [n for n in graph.leaves_read(graph.nodes[node_id]) if n in graph.data]
        new = set(weights) - read
        read |= new
        layer = layers.setdefault(layer_of(graph.nodes[node_id].name), _Layer({}, {}))
        layer.add(specs[device].name, known[call, device])
        layer.weight_bytes += sum(graph.nodes[n].type.device_bytes for n in new)
    out: list[Layers] = []
    for name, layer in layers.items():
        if out and set(out[-1].nodes) == set(layer.nodes):
            out[-1] = _joined(out[-1], name, layer)
        else:
            out.append(Layers(name, name, 1, layer.nodes, layer.seconds, layer.weight_bytes))
    return tuple(out)


def layer_lines(plan: PlanValue) -> list[str]:
    """Return the devices of all layers, as lines of a text."""
    found = find_layers(plan)
    shown = found if len(found) <= SHOWN else (*found[: SHOWN - 4], *found[-3:])
    table = [["layers", "nodes", "device", "predicted", "weights"]]
    for layers in shown:
        devices = ", ".join(
            name if len(layers.nodes) == 1 else f"{name} ({count_of(count, 'node')})"
            for name, count in list(layers.nodes.items())[:3]
        )
        devices += f" and {len(layers.nodes) - 3} more" if len(layers.nodes) > 3 else ""
        nodes, seconds = sum(layers.nodes.values()), sum(layers.seconds.values())
        weights = format_bytes(layers.weight_bytes) if layers.weight_bytes else ""
        table.append([layers.name, str(nodes), devices, format_seconds(seconds), weights])
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i in (0, 2) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in table
    ]
    if len(found) > len(shown):
        lines.insert(len(lines) - 3, f"... {len(found) - len(shown)} lines more, which --json has")
    return lines


@dataclass
class _Layer:
    nodes: dict[str, int]
    seconds: dict[str, float]
    weight_bytes: int = 0

    def add(self, device: str, seconds: float) -> None:
        self.nodes[device] = self.nodes.get(device, 0) + 1
        self.seconds[device] = self.seconds.get(device, 0.0) + seconds


def _joined(before: Layers, name: str, layer: _Layer) -> Layers:
    """Return layers extended by the next one."""
    nodes = {d: before.nodes[d] + layer.nodes[d] for d in before.nodes}
    seconds = {d: before.seconds[d] + layer.seconds[d] for d in before.nodes}
    weight_bytes = before.weight_bytes + layer.weight_bytes
    return Layers(before.first, name, before.count + 1, nodes, seconds, weight_bytes)
