"""Placement overrides: the devices that the user assigns to nodes, by id or by pattern of names.

    ("layer.9.*", "gpu:1"), (17, "cpu")  ->  {17: cpu, 41: gpu:1, ...}, with texts for the user

Complexity: O(nodes) for each pattern. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Graph
from ...topology.topology import Topology
from .node_names import NameIndex

Overrides = Sequence[tuple[str | int, str]]


def resolve_overrides(
    graph: Graph, topology: Topology, overrides: Overrides
) -> dict[int, tuple[int, str]]:
    """Return the device of each overridden node, and the override as text.

    Node ids take precedence over patterns, and later patterns over earlier ones. A view stands for
    its base.

    Raises
    ------
    PlanError
        A node does not exist, or a pattern matches none.
    DeviceError
        A device does not exist.
    """
    out: dict[int, tuple[int, str]] = {}
    names = NameIndex(graph, "placement")
    for key, name in sorted(overrides, key=lambda item: isinstance(item[0], int)):
        device = topology.index(name)
        matched = [graph.view_base(node_id) for node_id in names.find(key)]
        key_text = graph.nodes[key].name if isinstance(key, int) else key
        out.update((node_id, (device, f"override: {key_text} on {name}")) for node_id in matched)
    return out
