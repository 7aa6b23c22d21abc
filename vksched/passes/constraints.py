"""Rewrite constraints: the names of nodes that passes must leave as the user asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..ir.graph import Graph, Node
from ..topology.limits import Limits


@dataclass(frozen=True)
class RewriteConstraints:
    """observed: names of values that the user wants to see: each stays a value of its own.
    pinned_devices: names of nodes that the user has put on a device to that device; only nodes
    pinned to one device
        become one. limits: what every device allows that may run the graph; None where that is
        numpy alone. memory_bytes: of the least of these devices.
    """

    observed: frozenset[str] = frozenset()
    pinned_devices: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    memory_bytes: int = 0

    def propagate_pins(self, graph: Graph) -> RewriteConstraints:
        """Return the same with the homes of the ops that read what has one, of views, and of what
        only ops pinned to one device read: the planner will put it beside them.
        """
        if not self.pinned_devices:
            return self
        pinned_devices = dict(self.pinned_devices)
        for node in graph.nodes:
            if node.name in pinned_devices or node.declaration.leaf:
                continue
            if node.id in graph.views:
                read = [graph.nodes[graph.view_base(node.id)]]
            else:
                read = [graph.nodes[i] for i in graph.transitive_leaves(node)]
                read.sort(key=_heaviest_first)
            pinned_device = next(
                (pinned_devices[leaf.name] for leaf in read if leaf.name in pinned_devices), None
            )
            if pinned_device is not None:
                pinned_devices[node.name] = pinned_device
        readers: dict[int, set[str | None]] = {i: {None} for _, i in graph.outputs}
        for node in reversed(graph.nodes):
            found = readers.get(node.id, set())
            if node.name not in pinned_devices and not node.declaration.leaf and len(found) == 1:
                pinned_device = next(iter(found))
                if pinned_device is not None:
                    pinned_devices[node.name] = pinned_device
            for operand in node.inputs:
                readers.setdefault(operand, set()).add(pinned_devices.get(node.name))
        return replace(self, pinned_devices=pinned_devices)


def _heaviest_first(node: Node) -> int:
    return -node.type.words
