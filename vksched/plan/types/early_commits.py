"""Early commits: states that are written without a wait for the results before them.

    late     submit work | wait | read results | submit commit | wait
    early    submit work | submit commit | wait | read results        one wait for the run

A run that fails must change no state, so a commit normally waits until all other splits are
complete and checked. If one device runs all splits, its queue orders the commit after them. The
commit is then submitted at once if no run can end in between: nothing is observed, and no index can
be out of range. A device failure leaves the written states torn. They are all on that device, which
is then out of use, so they are restored from backups or lost.

Complexity: O(nodes). Examples: tests/engine/test_early_commits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...ir.graph import Graph, Node
from ...ir.value_range import fits
from ...topology.host_names import DRIVER
from ...topology.topology import Topology
from .plan_types import PlanValue

CHECKED_SIZES: Mapping[str, Callable[[Graph, Node], int]] = {
    "gather": lambda graph, node: graph.nodes[node.inputs[0]].type.shape[node.attrs.as_int("axis")],
    "moe_linear": lambda graph, node: graph.nodes[node.inputs[1]].type.shape[0],
    "quantized_moe_linear": lambda graph, node: graph.nodes[node.inputs[1]].type.shape[0],
}
"""The sizes of the indexed axes of ops that raise IndexOutOfRange."""
CLIPPED = frozenset({"dynamic_update_slice"})
"""Ops that accept any index."""


def may_commit_early(
    graph: Graph, topology: Topology, devices: Collection[int], nodes: Iterable[int]
) -> bool:
    """Return True if states may be written without a wait for the results, provided that nothing is
    observed, streamed, or transferred by another queue.

    devices, nodes: those of all splits.
    """
    if len(set(devices)) != 1:
        return False
    spec = topology.devices[next(iter(devices))]
    return (
        spec.kind != "cpu"
        and spec.submit_granularity == "split"
        and topology.host_of(next(iter(devices))) == DRIVER
        and all(cannot_fail(graph, graph.nodes[node_id]) for node_id in nodes)
    )


def is_early_allowed(plan: PlanValue) -> bool:
    """Return True if a plan commits early, and may."""
    splits = plan.splits
    if not plan.commits_early or any(
        split.waits or split.observed or split.async_transfers or split.refills for split in splits
    ):
        return False
    nodes = (node_id for split in splits for node_id in split.nodes)
    return may_commit_early(plan.graph, plan.topology, {s.device for s in splits}, nodes)


def cannot_fail(graph: Graph, node: Node) -> bool:
    """Return True if all indices of a node are known to be in range."""
    op = node.declaration
    if not op.indices or op.name in CLIPPED:
        return True
    if op.name not in CHECKED_SIZES:
        return False
    size = CHECKED_SIZES[op.name](graph, node)
    return all(fits(graph.bounds[node.inputs[at]], (-size, size - 1)) for at in op.indices)
