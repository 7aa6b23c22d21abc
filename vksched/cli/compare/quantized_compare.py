"""Stepwise comparison of quantized models.

A value near the midpoint of two quantization levels may round to either: all later values then
differ by far more than rounding, and neither side is wrong. So the model is split after each
quantize node, and another runtime computes each part from vksched's own values:

    vksched:  x -> part -> q1 -> part -> q2 -> part -> y       one run that returns q1 and q2
    reference:    x -> part -> q1'   q1 -> part -> q2'   q2 -> part -> y'

Each result must be equal for equal inputs, except that a few elements of q1' and q2' may differ by
one level. The whole runs diverge at the first q that differs.

Examples: tests/cli/test_cli_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.dtypes import NDArray
from ...common.errors import VkschedError
from ..differences import Tolerance, compare
from .reference_runtimes import ReferenceRuntime, whole_model

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from ...importers.onnx.model import Model

ROUNDS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm")
"""Prefixes of the ops that quantize."""
SHARE = 0.1
"""Maximum share of elements that may be one level off for equal inputs; one element always may. A
wrong rounding mode changes about half.
"""
AGAIN = "%again"

Again = Callable[[Sequence[str]], Mapping[str, Any]]
"""Runs the model once more with vksched; returns its outputs and the named values."""


@dataclass(frozen=True)
class QuantizedMismatch:
    """A quantized value with wrong elements. node: its producer. steps: error in levels."""

    node: str
    value: str
    elements: int
    of: int
    steps: int

    @property
    def is_one_step(self) -> bool:
        return self.steps == 1 and self.elements <= max(1, SHARE * self.of)

    def __str__(self) -> str:
        far = "one step" if self.steps == 1 else f"up to {self.steps} steps"
        return f"{self.node}: {self.elements} of {self.of} elements off by {far}"


@dataclass(frozen=True)
class Steps:
    """Result of a stepwise comparison.

    values: number of compared quantized values. off: values that differ for equal inputs. wrong:
    values that differ by more than a level, or than the tolerance. parted: where the whole runs
    diverge.
    """

    values: int
    off: tuple[QuantizedMismatch, ...]
    wrong: tuple[str, ...]
    parted: QuantizedMismatch | None

    @property
    def acquits(self) -> bool:
        """Return True if a single level at one node explains all differences."""
        return not self.wrong and self.parted is not None and self.parted.is_one_step


def quantizing_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Return the nodes that quantize."""
    return [n for n in nodes if n.op_type.startswith(ROUNDS)]


def compare_steps(
    reference: ReferenceRuntime,
    model: Model,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    again: Again,
    tolerance: Tolerance,
) -> Steps:
    """Compare a quantized model part by part.

    outputs: the outputs of the compared run. Raise VkschedError if the reference cannot run the
    parts or vksched's run cannot be repeated.
    """
    nodes = quantizing_nodes(model.nodes)
    names = [str(name) for node in nodes for name in node.output if name]
    ours = again(names)
    if any(d.wrong for d in compare({n: ours[n] for n in outputs}, outputs, tolerance)):
        raise VkschedError("[check] the run that returns quantized values differs from the first")
    cuts = {name: np.asarray(ours[name]) for name in names}
    ends = {name: value for name, value in outputs.items() if name not in cuts}
    parts = _split_model(model, cuts, list(ends))
    found = reference.values(parts, {**inputs, **cuts}, [*ends, *(f"{n}{AGAIN}" for n in cuts)])
    off, wrong = [], []
    for value in _judged(nodes, cuts, {n: found[f"{n}{AGAIN}"] for n in cuts}, tolerance):
        if isinstance(value, QuantizedMismatch) and value.is_one_step:
            off.append(value)
        else:
            wrong.append(str(value))
    judged = compare(ends, {name: found[name] for name in ends}, tolerance)
    wrong += [f"output {d.output!r}: {d.wrong}" for d in judged if d.wrong]
    theirs = reference.values(whole_model(model, names), inputs, names)
    parted = (
        v for v in _judged(nodes, cuts, theirs, tolerance) if isinstance(v, QuantizedMismatch)
    )
    return Steps(len(cuts), tuple(off), tuple(wrong), next(parted, None))


def _judged(
    nodes: Sequence[NodeProto],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    tolerance: Tolerance,
) -> Iterator[QuantizedMismatch | str]:
    """Return the errors of quantized values in levels, or other errors.

    A zero point may itself be one level off: elements are compared by their distance from it.
    """
    from ...importers.onnx.nodes.cpu_node import describe

    for node in nodes:
        shift = 0
        if node.op_type == "DynamicQuantizeLinear" and len(node.output) > 2 and node.output[2]:
            shift = int(theirs[node.output[2]]) - int(ours[node.output[2]])
        for place, name in enumerate(node.output):
            if name:
                one, other = np.asarray(ours[name]), np.asarray(theirs[name])
                off = _off(describe(node), name, one, other, 0 if place else shift, tolerance)
                if off:
                    yield off


def _off(
    node: str, name: str, one: NDArray, other: NDArray, shift: int, tolerance: Tolerance
) -> QuantizedMismatch | str:
    """Return the error of one value in levels, or a description of another error; "" for none."""
    if one.shape != other.shape or one.dtype != other.dtype or one.dtype.kind not in "iu":
        (found,) = compare({name: one}, {name: other}, tolerance)
        return found.wrong and f"{node}: {found.wrong}"
    far = np.abs(one.astype(np.int64) + shift - other.astype(np.int64))
    if not far.any():
        return ""
    return QuantizedMismatch(node, name, int(np.count_nonzero(far)), far.size, int(far.max()))


def _split_model(model: Model, cuts: Mapping[str, Any], outputs: Sequence[str]) -> ModelProto:
    """Return a model with quantized values as inputs, and their recomputed values as renamed
    outputs.
    """
    from onnx.helper import (
        make_empty_tensor_value_info,
        make_tensor_value_info,
        np_dtype_to_tensor_dtype,
    )

    parts = whole_model(model)
    graph = parts.graph
    for node in graph.node:
        node.output[:] = [f"{name}{AGAIN}" if name in cuts else name for name in node.output]
    for name, array in cuts.items():
        kind = np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(make_tensor_value_info(name, kind, array.shape))
    del graph.value_info[:], graph.output[:]
    names = [*outputs, *(f"{name}{AGAIN}" for name in cuts)]
    graph.output.extend(make_empty_tensor_value_info(name) for name in names)
    return parts
