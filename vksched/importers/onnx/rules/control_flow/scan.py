"""Rules for Scan: unrolled if it is small, because the number of iterations is a size.

Scan(s, xs) { body }  ->  body%0(s, xs[0]), body%1(.., xs[1]), ..., and Stack of the scan outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import GraphProto
from onnx.helper import make_node

from .....common.dtypes import NDArray, normalize_axis
from .....common.errors import ModelFormatError
from .....ir.tensor import Tensor
from .....ops import moveaxis, reshape, slice
from ...nodes.cpu_node import describe
from ...nodes.elements import EVERY
from ...nodes.inline_subgraph import hand_over
from ...nodes.values import Value, known
from ..registry import rule
from .if_loop import INTERNAL, body_of, copy_of, no_turns, require_small, stacked

if TYPE_CHECKING:
    from onnx import NodeProto

    from ...nodes.node import NodeContext


def _directions(n: NodeContext, name: str, count: int) -> tuple[int, ...]:
    """Return an attribute with one number per scanned value, by default 0."""
    directions = tuple(n.attr(name) or (0,) * count)
    if len(directions) != count:
        raise ModelFormatError(
            f"[onnx] {describe(n.node)}: expected {count} numbers as {name!r}, got {directions}"
        )
    return directions


@rule("Stack", types=EVERY, domain=INTERNAL)
def stack_rule(n: NodeContext) -> Value:
    return stacked(n, [n.value(i) for i in range(len(n.inputs))], n.attr("axis"))


@rule("Scan", types=EVERY)
def scan(n: NodeContext) -> Sequence[Tensor | Value | None]:
    count = n.attr("num_scan_inputs")
    operand_count = len(n.inputs) - (n.version < 9)
    if not isinstance(count, int) or not 0 < count <= operand_count:
        raise ModelFormatError(
            f"[onnx] {describe(n.node)}: expected 1 to {operand_count} as 'num_scan_inputs', "
            f"got {count}"
        )
    carried = operand_count - count
    body = body_of(n, "body", operand_count, carried)
    if n.version < 9:
        return _batched_scan(n, body, count)
    axes = _directions(n, "scan_input_axes", count)
    backward = _directions(n, "scan_input_directions", count)
    lines = [_parts(n, n.value(carried + i), axes[i], bool(backward[i])) for i in range(count)]
    iterations = len(lines[0])
    n.require(all(len(line) == iterations for line in lines), "inputs of different lengths")
    require_small(body, iterations)
    nodes, env, states, scan_names = _copy_iterations(
        n, body, n.lowering.context.prefix(n.node), list(n.node.input[:carried]), lines
    )
    nodes += hand_over(states, n.outputs)
    scans = len(body.output) - carried
    out_axes = _directions(n, "scan_output_axes", scans)
    out_backward = _directions(n, "scan_output_directions", scans)
    for k, target in enumerate(n.outputs[carried:]):
        if not target:
            continue
        if not iterations:
            env[target] = no_turns(body, carried + k)
            n.require(out_axes[k] == 0, "no iterations")
            continue
        ordered = scan_names[k][::-1] if out_backward[k] else scan_names[k]
        nodes.append(
            make_node("Stack", ordered, [target], n.node.name, domain=INTERNAL, axis=out_axes[k])
        )
    n.require(bool(nodes), "no iterations")
    n.lowering.splice(nodes, env)
    return []


def _batched_scan(n: NodeContext, body: GraphProto, count: int) -> list[Tensor | Value | None]:
    """Scan of opset 8: the first axis of all operands is the batch, the second is time."""
    n.require(not n.has(0), "sequence lengths")
    carried = len(n.inputs) - 1 - count
    backward = _directions(n, "directions", count)
    batches = n.shape(1)[0]
    slices = [_parts(n, n.value(i), 0, False) for i in range(1, len(n.inputs))]
    prefix = n.lowering.context.prefix(n.node)
    nodes: list[NodeProto] = []
    env: dict[str, Value] = {}
    results: list[list[str]] = [[] for _ in n.outputs]
    for batch in range(batches):
        lines = [_parts(n, slices[carried + i][batch], 0, bool(backward[i])) for i in range(count)]
        require_small(body, batches * len(lines[0]))
        start = f"{prefix}{batch}."
        states = [f"{start}state{i}" for i in range(carried)]
        env.update({name: slices[i][batch] for i, name in enumerate(states)})
        more, found, states, scan_names = _copy_iterations(n, body, start, states, lines)
        nodes += more
        env.update(found)
        for k, line in enumerate(scan_names):
            name = f"{start}scan{k}"
            n.require(bool(line), "no iterations")
            nodes.append(make_node("Stack", line, [name], n.node.name, domain=INTERNAL, axis=0))
            states.append(name)
        for i, name in enumerate(states[: len(results)]):
            results[i].append(name)
    n.require(bool(batches), "no batches")
    for names, target in zip(results, n.outputs, strict=True):
        if target:
            nodes.append(make_node("Stack", names, [target], n.node.name, domain=INTERNAL, axis=0))
    n.lowering.splice(nodes, env)
    return []


def _copy_iterations(
    n: NodeContext,
    body: GraphProto,
    prefix: str,
    states: list[str],
    lines: Sequence[Sequence[Value]],
) -> tuple[list[NodeProto], dict[str, Value], list[str], list[list[str]]]:
    """Return the nodes of all iterations, their env, the final states, and the names of the scan
    outputs of each iteration.
    """
    nodes: list[NodeProto] = []
    env: dict[str, Value] = {}
    scan_names: list[list[str]] = [[] for _ in range(len(body.output) - len(states))]
    for iteration in range(len(lines[0])):
        start = f"{prefix}{iteration}."
        items = [f"{start}item{i}" for i in range(len(lines))]
        env.update({name: line[iteration] for name, line in zip(items, lines, strict=True)})
        arguments = dict(zip((i.name for i in body.input), [*states, *items], strict=False))
        copy = copy_of(n, body, start, arguments)
        nodes += copy.nodes
        env.update(copy.env)
        states = copy.outputs[: len(states)]
        for names, name in zip(scan_names, copy.outputs[len(states) :], strict=True):
            names.append(name)
    return nodes, env, states, scan_names


def _parts(n: NodeContext, value: Value, axis: int, backward: bool) -> list[Value]:
    """Return the slices of a value along an axis, which is removed."""
    at = normalize_axis("scan", axis, len(value.shape))
    order = range(value.shape[at])[:: -1 if backward else 1]
    if value.array is not None:
        array: NDArray = value.array
        return [known(np.take(array, i, at)) for i in order]
    x = n.lowering.tensor(value)
    rest = (*x.shape[:at], *x.shape[at + 1 :])
    rows = moveaxis(x, at, 0) if at else x  # its slices are views
    return [Value(value.elem_type, tensor=reshape(slice(rows, i, i + 1, 0), rest)) for i in order]
