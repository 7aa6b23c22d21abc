"""Control flow: runs the CPU steps between the segments of a program.

A node without subgraphs is evaluated directly. The body of a loop is a program of its own, run once
for each iteration; its segments are cached with those of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from ..common.dtypes import NDArray, normalize_axis
from ..common.errors import ModelFormatError, ShapeError
from ..importers.onnx.lower.frame import CpuStep, Frame
from ..importers.onnx.nodes.cpu_node import describe, naming
from ..importers.onnx.nodes.elements import numpy_of
from ..importers.onnx.nodes.names import subgraphs
from ..importers.onnx.nodes.node import attribute_value
from ..importers.onnx.nodes.values import CpuValue, Value
from .segments import AnyProgram, CpuStepFunction, StepFn


def make_step(program: AnyProgram, step: CpuStep) -> CpuStepFunction:
    """Return the function that executes a CPU step.

    Raises
    ------
    ModelFormatError
        The node has subgraphs, and its op is unknown.
    """
    node = step.node
    if not subgraphs(node):
        return CpuStepFunction(_evaluation(program, step))
    make = {"Loop": _loop, "Scan": _scan}.get(node.op_type)
    if make is None or len(subgraphs(node)) != 1:
        raise ModelFormatError(f"[onnx] {describe(node)}: no such control flow; {step.reason}")
    body = _Body(program, subgraphs(node)[0], step)
    return CpuStepFunction(make(node, body), (body.program,))


def _evaluation(program: AnyProgram, step: CpuStep) -> StepFn:
    with naming(step.reason):
        evaluate = program.context.host_node(step.node.SerializeToString(deterministic=True))

    def run(inputs: Sequence[CpuValue], captured: Mapping[str, CpuValue]) -> list[CpuValue]:
        with naming(step.reason):
            return evaluate(inputs)

    return run


class _Body:
    """A subgraph as a program: its slots are its inputs and the captured values that may differ
    between runs.
    """

    def __init__(self, program: AnyProgram, graph: GraphProto, step: CpuStep) -> None:
        self.graph = graph
        self.inputs = [str(i.name) for i in graph.input]
        env = {name: v if v.is_known else Value(0, slot=name) for name, v in step.captured.items()}
        env.update(program.context.graph_initializers(graph))
        env.update({name: Value(0, slot=name) for name in self.inputs})
        self.captured = [name for name, value in env.items() if value.slot is not None]
        frame = Frame(tuple(graph.node), env, tuple(o.name for o in graph.output))
        self.program = program.of(frame)

    def __call__(
        self, inputs: Sequence[CpuValue], captured: Mapping[str, CpuValue]
    ) -> list[CpuValue]:
        held = {name: captured[name] for name in self.captured if name in captured}
        held.update(zip(self.inputs, inputs, strict=False))
        return self.program(held)


# -- loop ----------------------------------------------------------------------------------------


def _loop(node: NodeProto, body: _Body) -> StepFn:
    """Return a function that runs a Loop, or its remaining iterations if the first ones are part of
    the graph.
    """
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    carried = len(body.inputs) - 2
    scans = len(body.graph.output) - 1 - carried
    first, limit = attributes.get("turn", 0), attributes.get("count")

    def run(inputs: Sequence[CpuValue], captured: Mapping[str, CpuValue]) -> list[CpuValue]:
        operands = list(inputs) + [None] * (2 + carried - len(inputs))
        count = limit
        if limit is None:
            count = -1 if operands[0] is None else max(0, int(_scalar(operands.pop(0), node)))
            operands = operands[1:] if count < 0 and len(operands) > 1 + carried else operands
        keep = operands[0] is None or bool(_scalar(operands[0], node))
        states = operands[1 : 1 + carried]
        before = operands[1 + carried :]
        scan_outputs = [list(before[k::scans]) for k in range(scans)]
        turn = first
        while keep and turn != count:
            found = body([np.array(turn, np.int64), np.array(True), *states], captured)
            keep, states = bool(_scalar(found[0], node)), found[1 : 1 + carried]
            for line, value in zip(scan_outputs, found[1 + carried :], strict=True):
                line.append(value)
            turn += 1
        start = 1 + carried
        return states + [_stacked(line, body, start + k, 0) for k, line in enumerate(scan_outputs)]

    return run


def _scalar(value: CpuValue, node: NodeProto) -> NDArray:
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ModelFormatError(f"[onnx] {describe(node)}: expected one number, got {value!r}")
    return value.reshape(())


def _stacked(line: Sequence[CpuValue], body: _Body, index: int, axis: int) -> NDArray:
    """Return a scan output, stacked over all iterations; without iterations, undeclared sizes are
    0.
    """
    output = body.graph.output[index]
    if line:
        try:
            return np.stack([np.asarray(value) for value in line], axis)
        except ValueError as error:
            raise ModelFormatError(f"[onnx] output {output.name!r} of a loop: {error}") from None
    tensor = output.type.tensor_type
    if not tensor.elem_type:
        raise ModelFormatError(
            f"[onnx] output {output.name!r} of a loop: expected a declared type, because "
            "the loop had no iterations"
        )
    shape = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 0)
    return np.zeros(shape, numpy_of(tensor.elem_type))


# -- scan ----------------------------------------------------------------------------------------


def _scan(node: NodeProto, body: _Body) -> StepFn:
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    count = attributes["num_scan_inputs"]
    carried = len(body.inputs) - count
    scans = len(body.graph.output) - carried
    axes = attributes.get("scan_input_axes", (0,) * count)
    backward = attributes.get("scan_input_directions", attributes.get("directions", (0,) * count))
    out_axes = attributes.get("scan_output_axes", (0,) * scans)
    out_backward = attributes.get("scan_output_directions", (0,) * scans)
    batched = len(node.input) == 1 + carried + count
    """Return a function that runs a Scan. Opset 8 has lengths as the first operand, and a batch
    axis first in all others.
    """

    def once(
        inputs: Sequence[CpuValue], length: int | None, captured: Mapping[str, CpuValue]
    ) -> list[CpuValue]:
        states = list(inputs[:carried])
        lines = [
            _slices(node, value, axis, length, bool(back))
            for value, axis, back in zip(inputs[carried:], axes, backward, strict=True)
        ]
        if len({len(line) for line in lines}) > 1:
            raise ModelFormatError(f"[onnx] {describe(node)}: scans inputs of different lengths")
        scan_outputs: list[list[CpuValue]] = [[] for _ in range(scans)]
        for items in zip(*lines, strict=True):
            found = body([*states, *items], captured)
            states = found[:carried]
            for line, value in zip(scan_outputs, found[carried:], strict=True):
                line.append(value)
        return states + [
            _stacked(line[::-1] if out_backward[k] else line, body, carried + k, out_axes[k])
            for k, line in enumerate(scan_outputs)
        ]

    def run(inputs: Sequence[CpuValue], captured: Mapping[str, CpuValue]) -> list[CpuValue]:
        if not batched:
            return once(inputs, None, captured)
        operands = [np.asarray(value) for value in inputs[1:]]
        steps = operands[carried].shape[1]
        lengths = [steps] * len(operands[0]) if inputs[0] is None else inputs[0].tolist()
        batches = [
            once([value[b] for value in operands], length, captured)
            for b, length in enumerate(lengths)
        ]
        outs = zip(*batches, strict=True)
        return [
            np.stack([_padded(v, steps) if i >= carried else v for v in values])
            for i, values in enumerate(outs)
        ]

    return run


def _slices(
    node: NodeProto, value: CpuValue, axis: int, length: int | None, backward: bool
) -> list[NDArray]:
    """Return the slices of an array along an axis, without it."""
    array = np.asarray(value)
    try:
        rows = np.moveaxis(array, normalize_axis("scan", axis, array.ndim), 0)[:length]
    except ShapeError as error:
        raise ModelFormatError(f"[onnx] {describe(node)}: {error}") from None
    return list(rows[::-1] if backward else rows)


def _padded(array: NDArray, steps: int) -> NDArray:
    """Return an array padded with zeros to a number of steps."""
    out = np.zeros((steps, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
