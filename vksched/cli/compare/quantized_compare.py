"""Networks that round on their way, compared step by step.

A value that falls between two steps of a quantisation may fall on either: then all that follows
differs by far more than rounding, and neither side is wrong. So the network is cut behind each node
that quantises, and another runtime computes each part from vksched's own values:

    vksched:  x -> part -> q1 -> part -> q2 -> part -> y       one run, q1 and q2 kept
    reference:    x -> part -> q1'   q1 -> part -> q2'   q2 -> part -> y'

Each result must be the same on these equal inputs, q1' and q2' up to one step in a few elements.
Where the two whole runs part is the first q that differs. Examples: tests/cli/test_cli_check.py.
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
"""How the names of ops begin whose results are steps."""
SHARE = 0.1
"""So much of a quantised value may be one step off on equal inputs, and one element in any case: a
wrong way of rounding changes about half.
"""
AGAIN = "%again"

Again = Callable[[Sequence[str]], Mapping[str, Any]]
"""Runs the model once more with vksched; gives its outputs and the values named."""


@dataclass(frozen=True)
class Off:
    """A quantised value with wrong elements. node: its producer. steps: how far they are off."""

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
    """What comparing step by step has shown. values: how many quantised ones were compared. off:
    those that differ on equal inputs. wrong: what is more than a step, or than a tolerance, off on
    equal inputs. parted: where the whole runs part.
    """

    values: int
    off: tuple[Off, ...]
    wrong: tuple[str, ...]
    parted: Off | None

    @property
    def acquits(self) -> bool:
        """Whether one step, and nothing else, is what the runs differ by."""
        return not self.wrong and self.parted is not None and self.parted.is_one_step


def quantising_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Return the nodes whose results are steps."""
    return [n for n in nodes if n.op_type.startswith(ROUNDS)]


def compare_steps(
    reference: ReferenceRuntime,
    model: Model,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    again: Again,
    tolerance: Tolerance,
) -> Steps:
    """Compare a model that quantises part by part.

    outputs: of the run that is judged.

    Raises:
        VkschedError: the reference does not run the parts, or vksched's run cannot be repeated.
    """
    nodes = quantising_nodes(model.nodes)
    names = [str(name) for node in nodes for name in node.output if name]
    ours = again(names)
    if any(d.wrong for d in compare({n: ours[n] for n in outputs}, outputs, tolerance)):
        raise VkschedError("[check] the run that keeps quantised values differs from the first")
    cuts = {name: np.asarray(ours[name]) for name in names}
    ends = {name: value for name, value in outputs.items() if name not in cuts}
    parts = _take_apart(model, cuts, list(ends))
    found = reference.values(parts, {**inputs, **cuts}, [*ends, *(f"{n}{AGAIN}" for n in cuts)])
    off, wrong = [], []
    for value in _judged(nodes, cuts, {n: found[f"{n}{AGAIN}"] for n in cuts}, tolerance):
        if isinstance(value, Off) and value.is_one_step:
            off.append(value)
        else:
            wrong.append(str(value))
    judged = compare(ends, {name: found[name] for name in ends}, tolerance)
    wrong += [f"output {d.output!r}: {d.wrong}" for d in judged if d.wrong]
    theirs = reference.values(whole_model(model, names), inputs, names)
    parted = (v for v in _judged(nodes, cuts, theirs, tolerance) if isinstance(v, Off))
    return Steps(len(cuts), tuple(off), tuple(wrong), next(parted, None))


def _judged(
    nodes: Sequence[NodeProto],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    tolerance: Tolerance,
) -> Iterator[Off | str]:
    """Return by how many steps quantised values differ, or what else is wrong with them.

    A zero point may itself be one step off: elements are compared by their distance from it.
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
) -> Off | str:
    """Return by how many steps one value is off, or what else is wrong with it; "" for nothing."""
    if one.shape != other.shape or one.dtype != other.dtype or one.dtype.kind not in "iu":
        (found,) = compare({name: one}, {name: other}, tolerance)
        return found.wrong and f"{node}: {found.wrong}"
    far = np.abs(one.astype(np.int64) + shift - other.astype(np.int64))
    if not far.any():
        return ""
    return Off(node, name, int(np.count_nonzero(far)), far.size, int(far.max()))


def _take_apart(model: Model, cuts: Mapping[str, Any], outputs: Sequence[str]) -> ModelProto:
    """Return a model in which quantised values are inputs, and what it makes of them outputs with
    other names.
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
