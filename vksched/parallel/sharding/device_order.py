"""Device order: order the nodes of devices that share work, so that transferred values come first.

    device 0   [sum, norm] ----> [product 0, product 1]    the norm is transferred before the
    device 1                `--> [product 0, product 1]    products of its own device begin

A device submits all nodes between two transfers at once. A value that another device waits for must
not be in one submission with its local readers. So on each device, readers of a transferred value
are one step later. Complexity: O(edges). Examples: tests/parallel/test_steps.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph_builder import BuildResult


def find_steps(built: BuildResult) -> Mapping[str, int]:
    """Return positions of nodes such that no node has the position of a transferred operand, within
    the existing positions.
    """
    graph = built.graph
    transfer: set[int] = set()
    for node in graph.nodes:
        here = built.pinned_devices.get(node.id)
        for operand in node.inputs:
            source = graph.view_bases[operand]
            there = built.pinned_devices.get(source)
            if here is not None and there is not None and here != there:
                transfer.add(source)
    if not transfer:
        return built.pipeline_order
    steps: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        own = built.pipeline_order.get(node.name)
        sources = [source for i in node.inputs if (source := graph.view_bases[i]) in steps]
        before = [(steps[i][0], steps[i][1] + (i in transfer)) for i in sources]
        # nodes without operands come with their first reader; transferred states at once
        if (
            before
            or own is not None
            or node.id in transfer
            or (node.inputs and not built.pipeline_order)
        ):
            steps[node.id] = max([(own or 0, 0), *before])
    order = {step: number for number, step in enumerate(sorted(set(steps.values())))}
    return {graph.nodes[node].name: order[step] for node, step in steps.items()}
