"""Rewrite constraints: user requests that passes must respect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..ir.graph import Graph, Node
from ..topology.limits import Limits


@dataclass(frozen=True)
class RewriteConstraints:
    """Names of nodes that passes must not fuse, and the limits of the candidate devices.

    Parameters
    ----------
    observed
        Names of values that the user observes; they are not fused into other nodes.
    pinned_devices
        Device names by the names of nodes that the user has pinned. Only nodes pinned to one
        device are fused.
    limits
        The common kernel limits of all candidate devices, or None if only the CPU is a candidate.
    memory_bytes
        Memory of the smallest candidate device.
    """

    observed: frozenset[str] = frozenset()
    pinned_devices: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    memory_bytes: int = 0

    def propagate_pins(self, graph: Graph) -> RewriteConstraints:
        """Return a copy in which pins are propagated to (a) ops whose heaviest pinned leaf has a
        pin, (b) views of pinned values and (c) ops whose users are all pinned to one device. The
        planner places those ops there anyway.
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
