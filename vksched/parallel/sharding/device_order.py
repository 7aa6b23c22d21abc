"""Steps: the order in which devices that share work hand values on to each other.

    device 0   [sum, norm] ----> [product 0, product 1]    the norm crosses before the
    device 1                `--> [product 0, product 1]    products of its own device begin

What a device computes between two transfers is submitted as one. A value that another device waits
for must not stand in one submission with what its own device makes of it. So what reads a value
that crosses is a step later, on each device. Complexity: O(edges). Examples:
tests/parallel/test_steps.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph_builder import BuildResult


def find_steps(made: BuildResult) -> Mapping[str, int]:
    """Return the turns of nodes in which no node reads one of its own turn that crosses; within
    the turns that they have already.
    """
    graph = made.graph
    transfer: set[int] = set()
    for node in graph.nodes:
        here = made.pinned_devices.get(node.id)
        for operand in node.inputs:
            source = graph.view_bases[operand]
            there = made.pinned_devices.get(source)
            if here is not None and there is not None and here != there:
                transfer.add(source)
    if not transfer:
        return made.pipeline_order
    steps: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        own = made.pipeline_order.get(node.name)
        sources = [source for i in node.inputs if (source := graph.view_bases[i]) in steps]
        before = [(steps[i][0], steps[i][1] + (i in transfer)) for i in sources]
        # what is made of nothing comes with its first reader; a state that crosses at once
        if (
            before
            or own is not None
            or node.id in transfer
            or (node.inputs and not made.pipeline_order)
        ):
            steps[node.id] = max([(own or 0, 0), *before])
    order = {step: number for number, step in enumerate(sorted(set(steps.values())))}
    return {graph.nodes[node].name: order[step] for node, step in steps.items()}
