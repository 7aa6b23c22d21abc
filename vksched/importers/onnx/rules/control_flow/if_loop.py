"""Rules for If and Loop: inline the taken branch, and unroll loops with a known number of
iterations.

Other loops run on the CPU, one iteration at a time (vksched/models/control_flow.py).

    Loop(5) { body }  ->  body%0, body%1, ... body%4: each iteration is copied when the previous one
                          is lowered, because its condition may depend on values known by then
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import GraphProto
from onnx.helper import make_attribute, make_node

from .....common.errors import ModelFormatError, UnsupportedOp
from .....ir.tensor import Tensor
from .....ops import stack
from ...nodes.cpu_node import describe
from ...nodes.elements import EVERY, numpy_of
from ...nodes.inline_subgraph import Copy, copy_body, hand_over, node_count
from ...nodes.names import RANDOM, names_read
from ...nodes.values import Value, known
from ..registry import rule

if TYPE_CHECKING:
    from onnx import NodeProto

    from ...nodes.node import NodeContext

INTERNAL = "vksched"
"""Domain of internal nodes that only lowering generates."""
MAX_NODES = 512
"""Maximum number of nodes of an unrolled loop."""
MAX_BYTES = 1 << 26
"""Maximum bytes of a model file copied for the iterations of one loop."""


def body_of(n: NodeContext, name: str, inputs: int, outputs: int) -> GraphProto:
    """Return a subgraph with this number of inputs, and at least this number of outputs.

    Raises
    ------
    ModelFormatError
        The subgraph has other numbers.
    """
    graph = n.attr(name)
    if not isinstance(graph, GraphProto):
        raise ModelFormatError(f"[onnx] {describe(n.node)}: expected a graph as {name!r}")
    if len(graph.input) != inputs or len(graph.output) < max(outputs, len(n.outputs)):
        raise ModelFormatError(
            f"[onnx] {describe(n.node)}: expected {inputs} inputs and {outputs} outputs or more of "
            f"{name!r}, got {len(graph.input)} and {len(graph.output)}"
        )
    return graph


def copy_of(n: NodeContext, graph: GraphProto, prefix: str, arguments: Mapping[str, str]) -> Copy:
    initializers = n.lowering.context.graph_initializers(graph)
    return copy_body(graph.node, [o.name for o in graph.output], prefix, arguments, initializers)


@rule("If", types=EVERY)
def if_rule(n: NodeContext) -> Sequence[Tensor | Value | None]:
    taken = body_of(n, "then_branch" if n.number(0) else "else_branch", 0, len(n.outputs))
    copy = copy_of(n, taken, n.lowering.context.prefix(n.node), {})
    n.lowering.splice([*copy.nodes, *hand_over(copy.outputs, n.outputs)], copy.env)
    return []


# -- loop ----------------------------------------------------------------------------------------


@rule("Loop", types=EVERY)
def loop(n: NodeContext) -> Sequence[Tensor | Value | None]:
    carried = max(0, len(n.inputs) - 2)
    body = body_of(n, "body", 2 + carried, 1 + carried)
    if len(body.output) <= len(n.outputs):
        raise ModelFormatError(f"[onnx] {describe(n.node)}: expected as many results as its body")
    if any(n.has(i) and not n.value(i).is_known for i in (0, 1)):
        raise UnsupportedOp("Loop with a number of iterations that varies between runs")
    count = max(0, int(n.number(0))) if n.has(0) else -1
    if not _condition_is_known(n, body):
        raise UnsupportedOp("Loop with a condition that is computed")
    if (not n.has(1) or n.number(1)) and count > 0 and _copies_end(body):
        require_small(body, count)
    condition = known(np.array(bool(n.number(1, True))))
    return _copy_iteration(n, body, 0, count, condition, list(n.node.input[2:]), [])


@rule("Loop", types=EVERY, domain=INTERNAL)
def loop_on(n: NodeContext) -> Sequence[Tensor | Value | None]:
    """Continue an unrolled loop.

    Operands: the condition, the carried values, and the scan outputs of each iteration so far.
    """
    body: GraphProto = n.attr("body")
    carried = len(body.input) - 2
    names = list(n.node.input)
    iteration, count = n.attr("turn"), n.attr("count")
    return _copy_iteration(
        n, body, iteration, count, n.value(0), names[1 : 1 + carried], names[1 + carried :]
    )


def _copy_iteration(
    n: NodeContext,
    body: GraphProto,
    iteration: int,
    count: int,
    condition: Value,
    carried: list[str],
    scan_names: list[str],
) -> Sequence[Tensor | Value | None]:
    """Copy one iteration and a node that continues the loop, or end the loop."""
    if iteration == count or not n.lowering.demand(condition).reshape(-1)[0]:
        return _loop_results(n, body, carried, scan_names)
    require_small(body, iteration + 1)
    prefix = f"{n.lowering.context.prefix(n.node)}{iteration}."
    sources = [f"{prefix}turn", f"{prefix}keep", *carried]
    arguments = dict(zip((i.name for i in body.input), sources, strict=False))
    copy = copy_of(n, body, prefix, arguments)
    copy.env[sources[0]] = known(np.array(iteration, np.int64))
    copy.env[sources[1]] = known(np.array(True))
    on = make_node("Loop", [], n.outputs, n.node.name, domain=INTERNAL)
    ends = len(carried) + 1
    on.input.extend([*copy.outputs[:ends], *scan_names, *copy.outputs[ends:]])
    on.attribute.extend(
        [
            make_attribute("body", body),
            make_attribute("turn", iteration + 1),
            make_attribute("count", count),
        ]
    )
    n.lowering.splice([*copy.nodes, on], copy.env)
    return []


def require_small(body: GraphProto, iterations: int) -> None:
    nodes = node_count(body.node) * iterations
    if nodes > MAX_NODES or body.ByteSize() * iterations > MAX_BYTES:
        raise UnsupportedOp(f"Loop of {nodes} nodes in all its iterations")


def _loop_results(
    n: NodeContext, body: GraphProto, carried: list[str], scan_names: list[str]
) -> list[Tensor | Value | None]:
    env = n.lowering.env
    scans = len(body.output) - 1 - len(carried)
    out: list[Tensor | Value | None] = [env[name] if name else None for name in carried]
    for k in range(scans):
        iterations = [env[name] for name in scan_names[k::scans]]
        out.append(
            stacked(n, iterations, 0) if iterations else no_turns(body, 1 + len(carried) + k)
        )
    return out


def _copies_end(body: GraphProto) -> bool:
    """Return True if the condition stays true: the loop then runs all its iterations."""
    producers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    return name == body.input[1].name or (
        name in producers and producers[name].op_type == "Constant"
    )


def _condition_is_known(n: NodeContext, body: GraphProto) -> bool:
    """Return True if a loop's condition depends on known values only, in every iteration."""
    env = n.lowering.env
    carried = [i.name for i in body.input[2:]]
    lost = {
        name
        for name, initial in zip(carried, n.node.input[2:], strict=False)
        if initial and not env[initial].is_known
    }
    while True:
        unknown = set(lost)
        inside = {i.name for i in body.input} | {i.name for i in body.initializer}
        for node in body.node:
            unknown |= _unknown(node, unknown, inside, env)
            inside.update(node.output)
        back = {
            name
            for name, output in zip(carried, body.output[1:], strict=False)
            if _is_unknown(output.name, unknown, inside, env)
        }
        if back <= lost:
            return not _is_unknown(body.output[0].name, unknown, inside, env)
        lost |= back


def _is_unknown(name: str, unknown: set[str], inside: set[str], env: Mapping[str, Value]) -> bool:
    if name in inside:
        return name in unknown
    return name not in env or not env[name].is_known


def _unknown(
    node: NodeProto, unknown: set[str], inside: set[str], env: Mapping[str, Value]
) -> set[str]:
    if node.op_type in ("Shape", "Size", "SequenceLength", "OptionalHasElement"):
        return set()
    computed = node.op_type in RANDOM or any(
        _is_unknown(name, unknown, inside, env) for name in names_read(node)
    )
    return set(node.output) if computed else set()


def no_turns(body: GraphProto, index: int) -> Value:
    """Return the scan output of a loop without iterations; undeclared sizes are 0."""
    tensor = body.output[index].type.tensor_type
    if not tensor.elem_type:
        raise UnsupportedOp(
            f"a loop without iterations and without a type of {body.output[index].name}"
        )
    dims = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    return known(np.zeros((0, *dims), numpy_of(tensor.elem_type)))


def stacked(n: NodeContext, iterations: Sequence[Value], axis: int) -> Value:
    """Stack the values of all iterations along a new axis."""
    arrays = [v.array for v in iterations if v.array is not None]
    if len(arrays) == len(iterations) and all(a.shape == arrays[0].shape for a in arrays):
        n.require_room((len(arrays), *arrays[0].shape), arrays[0].dtype.name)
        return known(np.stack(arrays, axis))
    if any(not v.is_tensor for v in iterations):
        raise UnsupportedOp("a sequence per iteration")
    return Value(
        iterations[0].elem_type, tensor=stack([n.lowering.tensor(v) for v in iterations], axis)
    )
