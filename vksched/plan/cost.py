"""What a node costs on a device: whether it runs there, its dispatches, its seconds.

The one place that is asked for seconds. A machine is plain data (vksched/machine); what it means
for a graph is computed here: work by the op's own rule, over the speeds of the device. Complexity:
O(1) each, beside the op's own lowering. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..errors import UnsupportedOp
from ..graph import Graph, Node
from ..machine.spec import ALIGN_BYTES, DeviceSpec
from ..ops.core.lower import Lowering, choice_of, conversion_bytes, lower
from ..ops.core.op import Call, Work
from ..ops.core.variants import Choice
from .value import PlanValue


def why_not(spec: DeviceSpec, graph: Graph, node: Node) -> str | None:
    """Returns why a device cannot run a node, or None when it can."""
    if spec.kind == "cpu":
        return None
    if spec.out_of_use:
        return f"it is out of use, {spec.out_of_use}"
    # of a leaf a device holds all, though a node may read a view of a part only
    held = [graph.nodes[i].type for i in (*graph.leaves_read(node), *node.inputs)]
    for type_ in (*held, node.type):
        if type_.device_bytes > spec.page_bytes // ALIGN_BYTES * ALIGN_BYTES:
            return (
                f"{type_} takes {type_.device_bytes} bytes, over the largest buffer of "
                f"{spec.page_bytes}"
            )
    unfit = graph.unfit(node)
    if unfit is not None:
        return unfit
    try:
        need = lower_node(spec, graph, node).scratch_words * 4
    except UnsupportedOp as error:
        return str(error)
    if need > spec.page_bytes:
        return f"it needs {need} bytes beside its result, over the largest buffer"
    return None


def lower_node(spec: DeviceSpec, graph: Graph, node: Node) -> Lowering:
    """Returns the dispatches of a node on a device; raises UnsupportedOp with the reason."""
    return lower(node.declaration, call_of(spec, graph, node))


def variant_of(spec: DeviceSpec, graph: Graph, node: Node) -> Choice:
    """Returns the variant of its kernel by which a node runs on a device."""
    return choice_of(node.declaration, call_of(spec, graph, node))


def call_of(spec: DeviceSpec, graph: Graph, node: Node) -> Call:
    """Returns a node as its op sees it."""
    return Call(graph.input_types(node), node.type, node.attrs, spec.limits)


def split_seconds(spec: DeviceSpec, graph: Graph, nodes: Iterable[int]) -> float:
    """Returns the estimated time of some nodes in one submission."""
    return spec.submit_s + sum(node_seconds(spec, graph, graph.nodes[n]) for n in nodes)


def node_seconds(spec: DeviceSpec, graph: Graph, node: Node) -> float:
    """Returns the estimated time of one node."""
    op, call = node.declaration, call_of(spec, graph, node)
    work = op.work(call.inputs, call.output, call.attrs)
    if spec.kind != "cpu":
        beside = conversion_bytes(op, call)
        work = replace(work, bytes_moved=work.bytes_moved + beside)
    return work_seconds(spec, work)


def work_seconds(spec: DeviceSpec, work: Work) -> float:
    """Returns the time of some work on a device: the slowest of arithmetic, memory and what
    goes on in order.
    """
    in_order = 0.0 if spec.kind == "cpu" else work.rounds * spec.round_s
    least_s = max(work.flops / spec.flops_per_s, work.bytes_moved / spec.bytes_per_s, in_order)
    return spec.slowdown * least_s


def op_seconds(plan: PlanValue) -> tuple[dict[str, float], ...]:
    """Returns for each split the seconds that its nodes are estimated to take, by op."""
    out: list[dict[str, float]] = []
    for split in plan.splits:
        spec, of_split = plan.machine.devices[split.device], dict[str, float]()
        for node in (plan.graph.nodes[n] for n in split.nodes):
            seconds = node_seconds(spec, plan.graph, node)
            of_split[node.op] = of_split.get(node.op, 0.0) + seconds
        out.append(of_split)
    return tuple(out)
