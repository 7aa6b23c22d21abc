"""Wishes: what a pass must leave as the user asked for it, by the names of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..ir.graph import Graph, Node
from ..topology.limits import Limits


@dataclass(frozen=True)
class Wishes:
    """observed: names of values that the user wants to see: each stays a value of its own.
    homes: names of nodes that the user has put on a device to that device; only nodes of one home
        become one. limits: what every device allows that may run the graph; None where that is
        numpy alone. memory_bytes: of the least of these devices.
    """

    observed: frozenset[str] = frozenset()
    homes: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    memory_bytes: int = 0

    def with_pulled(self, graph: Graph) -> Wishes:
        """Returns the same with the homes of the ops that read what has one, of views, and of what
        only ops of one home read: the planner will put it beside them.
        """
        if not self.homes:
            return self
        homes = dict(self.homes)
        for node in graph.nodes:
            if node.name in homes or node.declaration.leaf:
                continue
            if node.id in graph.views:
                read = [graph.nodes[graph.view_base(node.id)]]
            else:
                read = [graph.nodes[i] for i in graph.sources_behind(node)]
                read.sort(key=_heaviest_first)
            home = next((homes[leaf.name] for leaf in read if leaf.name in homes), None)
            if home is not None:
                homes[node.name] = home
        readers: dict[int, set[str | None]] = {i: {None} for _, i in graph.outputs}
        for node in reversed(graph.nodes):
            found = readers.get(node.id, set())
            if node.name not in homes and not node.declaration.leaf and len(found) == 1:
                home = next(iter(found))
                if home is not None:
                    homes[node.name] = home
            for operand in node.inputs:
                readers.setdefault(operand, set()).add(homes.get(node.name))
        return replace(self, homes=homes)


def _heaviest_first(node: Node) -> int:
    return -node.type.words
