"""Constants of a prepared plan of the CPU: what weights alone make is computed once, when the plan
is prepared, and not in each run.

    weight --transpose--> kept        input, kept --recurrent--> ...

Passes fold only what is small, as a second copy of weights would have to be kept on the device. The
CPU has a buffer for such a value anyway. Examples: tests/runtime/test_host_constants.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...common.dtypes import NDArray
from ...common.errors import VkschedError
from ...ir.graph import Node
from ...plan.types.plan_types import PlanValue, Split
from .evaluate import CpuWeights, Values, evaluate_node

MAX_BYTES = 1 << 26
"""What a prepared plan makes of such values at most; those that would be more are made in each run.
Those that only others of them read are not kept.
"""


def make_constants(
    plan: PlanValue,
    splits: Sequence[Split],
    weights: CpuWeights,
    known: Mapping[int, NDArray],
    leaves: Collection[int],
) -> dict[int, NDArray]:
    """Return the arrays of the nodes of some splits that weights alone make. known: the weights
    that all runs find. leaves: roots of what leaves its split, which each run makes anew.
    """
    graph, made, left_bytes = plan.graph, dict[int, NDArray](), MAX_BYTES
    if plan.any_order:
        return made
    values, roots, fixed = Values(graph, weights), graph.view_bases, set(known)
    for node_id in (n for split in splits for n in split.nodes):
        node = graph.nodes[node_id]
        if any(roots[i] not in fixed for i in node.inputs):
            continue
        if node_id in leaves or node_id in plan.in_place or not _is_fixed(node):
            continue
        if node.type.host_bytes > left_bytes:
            continue
        try:
            operands = tuple([values[i] for i in node.inputs])
            values[node_id] = made[node_id] = evaluate_node(graph, node_id, operands).copy()
        except VkschedError:  # for the run to raise
            continue
        fixed.add(node_id)
        left_bytes -= node.type.host_bytes
    return made


def _is_fixed(node: Node) -> bool:
    """Whether the same operands make the same result."""
    op = node.declaration
    return bool(node.inputs) and not (op.opaque or op.stateful or op.name.startswith("random"))
