"""Node cost: support, dispatches and seconds of a node on a device.

This module is the only source of seconds. A topology is plain data (vksched/topology); its meaning
for a graph is computed here:

    work by the op's own rule / rough speeds of the device = estimate
    estimate * measured factor of similar calls + launch = first cost
    first cost * pace of recent runs = expected time now

Without measurements the estimate is used.
Complexity: O(1) each, plus the lowering of the op. Examples: tests/plan/test_plan.py,
tests/plan/test_costs.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ...common.dtypes import FLOAT16
from ...common.errors import UnsupportedOp
from ...ir.graph import Graph, Node
from ...ir.op import EPILOGUE, Call, Op, Work
from ...ir.precision import SINGLE, precision_of
from ...ops.lowering.lower import Lowering, choice_of, conversion_bytes, lower
from ...ops.lowering.variants import Choice
from ...storage.weak_map import WeakIdMap
from ...topology.device_spec import ALIGN_BYTES, DeviceSpec
from ...topology.perf_model import ANY, BOUNDS
from ...topology.topology import Topology
from ..types.plan_types import PlanValue


def written_down(topology: Topology) -> bool:
    """Return True if the speeds of a topology are declared by a user rather than measured here."""
    return all(spec.kind != "vulkan" for spec in topology.devices)


def estimated_text(topology: Topology) -> str:
    """Return a text for the user on the origin of times that were not measured."""
    speeds = "the speeds written down" if written_down(topology) else "rough speeds of devices"
    return f"estimated, by work and {speeds}"


def unsupported_reason(spec: DeviceSpec, graph: Graph, node: Node) -> str | None:
    """Return the reason that a device cannot run a node, or None if it can."""
    if spec.disabled_reason:
        return f"it is out of use, {spec.disabled_reason}"
    if not spec.onnx_ops and node.declaration.opaque:
        return f"{node.op} is of an ONNX file, which its owner does not allow there"
    if spec.kind == "cpu":
        return None
    # a device holds all of a leaf, although a node may read a view of a part only
    held = [graph.nodes[i].type for i in (*graph.leaves_read(node), *node.inputs)]
    for type_ in (*held, node.type):
        if type_.device_bytes > spec.max_buffer_bytes // ALIGN_BYTES * ALIGN_BYTES:
            return (
                f"{type_} takes {type_.device_bytes} bytes, over the largest buffer of "
                f"{spec.max_buffer_bytes}"
            )
    unsupported = graph.unsupported(node)
    if unsupported is not None:
        return unsupported
    try:
        need = lower_node(spec, graph, node).scratch_words * 4
    except UnsupportedOp as error:
        return str(error)
    if need > spec.max_buffer_bytes:
        return f"it needs {need} bytes of scratch memory, over the largest buffer"
    return None


class _Results:
    """The cached results of a graph's distinct calls for devices and their limits, by signature.

    Equal objects share results. An entry ends with its object, therefore the number of devices is
    not bounded.
    """

    def __init__(self) -> None:
        self._by_value: WeakKeyDictionary[object, dict[int, Any]] = WeakKeyDictionary()
        self._by_id: WeakIdMap[dict[int, Any]] = WeakIdMap()

    def of(self, owner: object) -> dict[int, Any]:
        """Return the results for a device or its limits."""
        found = self._by_id.get(owner)  # without the hash of all fields
        if found is None:
            found = self._by_value.setdefault(owner, {})
            self._by_id.set(owner, found)
        return found


_results: WeakKeyDictionary[Graph, _Results] = WeakKeyDictionary()


def _known(graph: Graph, owner: object) -> dict[int, Any]:
    """Return the cached results of a graph's distinct calls for a device or its limits, by
    signature.
    """
    of_graph = _results.get(graph)
    if of_graph is None:
        of_graph = _results[graph] = _Results()
    return of_graph.of(owner)


def lower_node(spec: DeviceSpec, graph: Graph, node: Node) -> Lowering:
    """Return the dispatches of a node on a device.

    Raises
    ------
    UnsupportedOp
        The device cannot run the node; the text gives the reason.
    """
    known, signature = _known(graph, spec.limits), graph.signatures[node.id]
    found: Lowering | str | None = known.get(signature)
    if found is None:
        try:
            found = lower(node.declaration, call_of(spec, graph, node))
        except UnsupportedOp as error:
            found = str(error)
        known[signature] = found
    if isinstance(found, str):
        raise UnsupportedOp(found)
    return found


def variant_of(spec: DeviceSpec, graph: Graph, node: Node) -> Choice:
    """Return the kernel variant of a node on a device."""
    return choice_of(node.declaration, call_of(spec, graph, node))


def call_of(spec: DeviceSpec, graph: Graph, node: Node) -> Call:
    """Return a node as a call of its op."""
    return Call(graph.input_types(node), node.type, node.attrs, spec.limits)


COPY_IN, COPY_OUT = COPIES = ("copy in", "copy out")
"""Kinds of the device's own part of a transfer: between device memory and the staging buffer."""


IGNORED_FLAGS = ("keepdims",)
"""Flags without influence on the work."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a node on a device.

    measured: True if they rest on measured calls of its op or of similar ops, or on runs; otherwise
    they are estimated from work and rough speeds.
    """

    seconds: float
    measured: bool


def split_seconds(spec: DeviceSpec, graph: Graph, nodes: Iterable[int]) -> float:
    """Return the expected time of several nodes in one submission."""
    return submission_seconds(spec) + sum(node_seconds(spec, graph, graph.nodes[n]) for n in nodes)


def submission_seconds(spec: DeviceSpec) -> float:
    """Return the overhead of a submission in seconds, up to the time the host knows its end."""
    costs = spec.costs
    return costs.submit_s + costs.start_s + costs.fence_s if costs.calls else spec.submit_s


def copy_seconds(spec: DeviceSpec, way: str, size_bytes: float) -> float:
    """Return the device's own seconds of a transfer.

    They are a part of the link's time, or 0 if they were not measured. way: one of COPIES.
    """
    estimate_s = 2 * size_bytes / spec.bytes_per_s
    factor, kind = spec.costs.factor((f"{way}/bytes",), estimate_s)
    return factor * estimate_s * (spec.costs.pace(way) or 1.0) if kind else 0.0


def node_seconds(spec: DeviceSpec, graph: Graph, node: Node) -> float:
    """Return the expected time of one node."""
    return node_cost(spec, graph, node).seconds


def node_cost(spec: DeviceSpec, graph: Graph, node: Node) -> Cost:
    """Return the expected time of one node, and whether it was measured.

    The pace of recent runs is included. The slowdown that keeps submissions short is not.
    """
    first = first_cost(spec, graph, node)
    pace = spec.costs.pace(node.op)
    if pace is None:
        return Cost(spec.slowdown * first.seconds, first.measured)
    return Cost(pace * first.seconds, first.measured or spec.costs.saw(node.op))


def longest_seconds(spec: DeviceSpec, graph: Graph, node: Node) -> float:
    """Return the time of one node that a submission must allow for: the maximum of the expected
    time and of all observed excessive times.
    """
    pace = spec.costs.pace(node.op)
    slower = spec.slowdown if pace is None else max(spec.slowdown, pace)
    return slower * first_cost(spec, graph, node).seconds


def first_cost(spec: DeviceSpec, graph: Graph, node: Node) -> Cost:
    """Return the time of one node on a device with the pace of its calibration."""
    known, signature = _known(graph, spec), graph.signatures[node.id]
    found: Cost | None = known.get(signature)
    if found is None:
        op, call = node.declaration, call_of(spec, graph, node)
        found = known[signature] = call_cost(spec, op, call, node.id in graph.overwritten)
    return found


def call_cost(spec: DeviceSpec, op: Op, call: Call, over: bool = False) -> Cost:
    """Return the time of one call on a device with the pace of its calibration.

    over: True if the result is written in place of operand `kept`.
    """
    if op.name == "state":
        return Cost(0.0, bool(spec.costs.calls))  # a view or leaf is memory and never runs
    if (
        spec.kind == "cpu" and EPILOGUE in call.attrs
    ):  # numpy computes an epilogue as a pass of its own
        bare = call_cost(spec, op, call.without_epilogue, over)
        return Cost(bare.seconds + _pass_seconds(spec, call), bare.measured)
    work = call_work(spec, op, call)
    if over:
        copied = 2.0 * call.output.device_bytes
        work = replace(work, bytes_moved=max(0.0, work.bytes_moved - copied))
    estimate_s, bound = estimate(spec, work)
    costs = spec.costs
    if not costs.calls:
        return Cost(spec.launch_s + estimate_s, False)
    factor, kind = costs.factor(kinds_of(op, call, bound), estimate_s)
    measured = bool(kind) and not kind.startswith(ANY)
    return Cost(costs.launch_s + factor * estimate_s, measured)


def _pass_seconds(spec: DeviceSpec, call: Call) -> float:
    """Return the seconds to read and write the elements of a result once."""
    estimate_s = 2.0 * call.output.host_bytes / spec.bytes_per_s
    kinds = ("elementwise/bytes", f"{ANY}/bytes")
    return spec.costs.factor(kinds, estimate_s)[0] * estimate_s


def call_work(spec: DeviceSpec, op: Op, call: Call) -> Work:
    """Return the work of a call on a device, conversions included."""
    work = op.work(call.inputs, call.output, call.attrs)
    if spec.kind != "cpu":
        conversion = conversion_bytes(op, call)
        work = replace(work, bytes_moved=work.bytes_moved + conversion)
    return work


def kinds_of(op: Op, call: Call, bound: str) -> tuple[str, str, str, str]:
    """Return the kinds for which the factor of a call may have been measured, the most specific
    first: its op with this signature, its op, its family, any op.
    """
    return (
        f"{call_signature(op, call)}/{bound}",
        f"{op.name}/{bound}",
        f"{family_of(op)}/{bound}",
        f"{ANY}/{bound}",
    )


def call_signature(op: Op, call: Call) -> str:
    """Return an op with the attributes that separate its calls, as "matmul+transpose_b": flags,
    groups, quantized operands, an epilogue and a precision. Kernels differ in these.
    """
    ways = [
        name for name, value in call.attrs.items() if value is True and name not in IGNORED_FLAGS
    ]
    if call.attrs.get("groups", 1) not in (1, None):
        ways.append("groups")
    if any(operand.dtype == FLOAT16 for operand in call.inputs):
        ways.append(FLOAT16)
    if EPILOGUE in call.attrs:
        ways.append(EPILOGUE)
    if (mode := precision_of(call.attrs)) != SINGLE:
        ways.append(mode)
    return "+".join([op.name, *ways])


def family_of(op: Op) -> str:
    """Return the family of an op, a folder of vksched/ops, or "" if it has none."""
    for rule in (op.work, op.reference):
        room, _, rest = rule.__module__.partition(".ops.")
        family = rest.partition(".")[0]
        if room and family not in ("", "lowering"):
            return family
    return ""


def estimate(spec: DeviceSpec, work: Work) -> tuple[float, str]:
    """Return the seconds of some work by the rough speeds of a device, and the limiting resource:
    the slowest of arithmetic, memory and sequential steps.
    """
    in_order = 0.0 if spec.kind == "cpu" else work.rounds * spec.loop_latency_s
    each = (work.flops / spec.flops_per_s, work.bytes_moved / spec.bytes_per_s, in_order)
    least_s = max(each)
    return least_s, BOUNDS[each.index(least_s)]


def work_seconds(spec: DeviceSpec, work: Work) -> float:
    """Return the seconds of some work by the rough speeds of a device."""
    return spec.slowdown * estimate(spec, work)[0]


def op_seconds(plan: PlanValue) -> tuple[dict[str, float], ...]:
    """Return, for each split, the estimated seconds of its nodes by op."""
    out: list[dict[str, float]] = []
    for split in plan.splits:
        spec, of_split = plan.topology.devices[split.device], dict[str, float]()
        for node in (plan.graph.nodes[n] for n in split.nodes):
            seconds = node_seconds(spec, plan.graph, node)
            of_split[node.op] = of_split.get(node.op, 0.0) + seconds
        out.append(of_split)
    return tuple(out)
