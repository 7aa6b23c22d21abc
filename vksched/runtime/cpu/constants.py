"""Constants of a prepared CPU plan: values that depend on weights only are computed once, when the
plan is prepared.

    weight --transpose--> constant    input, constant --rnn_scan--> ...

Constant folding is limited to small values, because the device would have to hold a second copy of
the weights. The CPU has a buffer for the value anyway. Examples:
tests/runtime/test_host_constants.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...common.dtypes import NDArray
from ...common.errors import VkschedError
from ...ir.graph import Node
from ...plan.types.plan_types import PlanValue, Split
from .evaluate import CpuWeights, Values, evaluate_node

MAX_BYTES = 1 << 26
"""Maximum size of the constants of a prepared plan; further ones are computed in each run.
Constants that only other constants read are not stored.
"""


def make_constants(
    plan: PlanValue,
    splits: Sequence[Split],
    weights: CpuWeights,
    known: Mapping[int, NDArray],
    leaves: Collection[int],
) -> dict[int, NDArray]:
    """Return the constants of some splits by node.

    Parameters
    ----------
    known
        Weights that are bound to all runs.
    leaves
        View bases of the values that leave their split, which are new in each run.
    """
    graph, constants, left_bytes = plan.graph, dict[int, NDArray](), MAX_BYTES
    if plan.any_order:
        return constants
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
            values[node_id] = constants[node_id] = evaluate_node(graph, node_id, operands).copy()
        except VkschedError:  # the run will raise it
            continue
        fixed.add(node_id)
        left_bytes -= node.type.host_bytes
    return constants


def _is_fixed(node: Node) -> bool:
    """Return True if equal operands always give equal results."""
    op = node.declaration
    return bool(node.inputs) and not (op.opaque or op.stateful or op.name.startswith("random"))
