"""Fused writes: new rows of several states are written by one dispatch.

Problem: a step of a language model writes a few rows of keys and of values in each layer. Each of
these dispatches takes longer to start than to run.

    keys 0   <- rows at start  -+
    values 0 <- rows at start  -+--> one dispatch: workgroups (x, i) write state i
    keys 1   <- rows at start  -+

Method: updates of states by the same kernel, for equal types and from the same start, which no
barrier separates, are one dispatch of a kernel that binds the rows and the memory of all states.
Their order does not matter, because no barrier separates them. Devices that bind few buffers write
state by state. Complexity: O(nodes). Examples: tests/plan/test_fused_writes.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ...ir.op import OUTPUT, Dispatch
from ...ops.layout.dynamic_update_slice import FUSED_BUFFERS, FUSED_SHADERS, FUSED_STATES
from ..types.plan_types import PlanValue, Split
from . import node_cost

OP = "dynamic_update_slice"


def fused_writes(plan: PlanValue, split: Split) -> Mapping[int, tuple[int, ...]]:
    """Return the nodes of each dispatch that updates several states, by the first of them."""
    graph, spec = plan.graph, plan.topology.devices[split.device]
    if spec.kind == "cpu" or spec.limits.storage_buffers < FUSED_BUFFERS:
        return {}
    writers = {value for value, _ in split.in_place if graph.nodes[value].op == OP}
    alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for position, node_id in enumerate(split.nodes, len(split.uploads)):
        if node_id in writers and _single_dispatch(plan, split, node_id) is not None:
            *_, start = graph.nodes[node_id].inputs
            segment = bisect_right(split.barriers, position)
            alike[segment, graph.signatures[node_id], start].append(node_id)
    groups = (
        tuple(nodes[first : first + FUSED_STATES])
        for nodes in alike.values()
        for first in range(0, len(nodes), FUSED_STATES)
    )
    return {group[0]: group for group in groups if len(group) > 1}


def fused_dispatch(plan: PlanValue, split: Split, nodes: tuple[int, ...]) -> Dispatch:
    """Return the dispatch of a group of `fused_writes`.

    Its operands are those of one node, the start, and then those of FUSED_STATES nodes each.
    """
    single = _single_dispatch(plan, split, nodes[0])
    assert single is not None
    x, _, z = single.groups
    operands = (2, *(1,) * FUSED_STATES, *(OUTPUT,) * FUSED_STATES)
    shader, groups = FUSED_SHADERS[single.shader], (x, len(nodes), z)
    return replace(single, shader=shader, operands=operands, groups=groups)


def _single_dispatch(plan: PlanValue, split: Split, node_id: int) -> Dispatch | None:
    """Return the dispatch of a write in place, or None if no kernel fuses it with others."""
    spec = plan.topology.devices[split.device]
    lowering = node_cost.lower_node(spec, plan.graph, plan.graph.nodes[node_id])
    dispatches = lowering.run(in_place=True)
    fuses = len(dispatches) == 1 and dispatches[0].shader in FUSED_SHADERS
    return dispatches[0] if fuses else None
