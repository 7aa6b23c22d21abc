"""Gradient rules against central differences: each case of the table, in float64, by numpy.

    f(x) = sum(op(x) * c)                                      c: fixed random numbers
    <grad f, d>  against  (f(x + h d) - f(x - h d)) / 2 h      d: random, or one element

Differences say nothing at a kink, such as relu at 0 or a tie of max: there those to the left and to
the right differ, and the direction does not count. Time: a few evaluations of the op per direction.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from ..autograd.walk import vjp
from ..graph import Graph, build_graph
from ..ops.core.gradient import is_smooth, rule_of
from ..ops.core.lower import compute
from ..ops.core.op import THEN
from ..ops.core.tensor import Tensor, apply, constant, input
from ..types import FLOAT64, NDArray, canonical_dtype
from .case import Case

STEP = 1e-5
"""h, of values near 1."""
DIRECTIONS, ELEMENTS = 3, 4
"""Of each operand: random directions, and its elements with the largest gradients."""
TOLERANCE = 2e-6
"""Of differences beside the gradient, as a share of the largest of the terms."""
KINK = 1e-3
"""Of differences to the left beside those to the right: from here on they belong to a kink."""
LARGEST = 40_000
"""Elements of operands and result, so that a case takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What the comparison of one case found.

    directions: those that counted. kinks: those that did not. error: the largest difference, as a
    share of the largest term. wrong: what is wrong, in words; empty where nothing is.
    """

    directions: int = 0
    kinks: int = 0
    error: float = 0.0
    wrong: str = ""


def is_compared(case: Case) -> bool:
    """Returns whether a case can be compared: its op has a rule, and all numbers are finite."""
    if rule_of(case.op) is None or case.large or THEN in case.attrs:
        return False  # gradients are taken before anything is fused
    if not any(a.dtype.kind == "f" and a.size for a in case.inputs):
        return False
    if sum(a.size for a in case.inputs) > LARGEST:
        return False
    wide = in_float64(case)
    if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in wide.inputs):
        return False
    result = wide.expected()
    return (
        result.dtype.kind == "f" and 0 < result.size <= LARGEST and bool(np.isfinite(result).all())
    )


def in_float64(case: Case) -> Case:
    """Returns a case with all its floats in float64."""
    return case.as_dtypes({"float32": FLOAT64, "float16": FLOAT64})


def gradient_graph(case: Case) -> tuple[Graph, tuple[int, ...]]:
    """Returns a graph whose outputs are the gradients by the operands that can have one, and which
    operands these are. Its inputs are x0, x1, ... and the gradient of the result, c.
    """
    given = [input(f"x{i}", a.shape, canonical_dtype(a.dtype)) for i, a in enumerate(case.inputs)]
    # operands that hold positions are known, as their values decide what is legal
    tensors: list[Tensor] = [
        t if is_smooth(t) else constant(a) for t, a in zip(given, case.inputs, strict=True)
    ]
    result = apply(case.op, tensors, case.attrs)
    smooth = tuple(i for i, t in enumerate(tensors) if is_smooth(t))
    wanted = {i: tensors[i] for i in smooth}
    pulled = vjp(result, input("c", result.shape, result.dtype), wanted, missing="zeros")
    return build_graph({f"g{i}": t for i, t in pulled.items()})[0], smooth


def evaluate(graph: Graph, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
    """Returns the outputs of a graph by the numpy references alone."""
    values: dict[int, NDArray] = dict(graph.data)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op == "input":
                values[node.id] = feeds[node.name]
            elif not node.declaration.leaf:
                operands = tuple(values[i] for i in node.inputs)
                values[node.id] = np.asarray(compute(node.declaration, operands, node.attrs))
    return {name: values[i] for name, i in graph.outputs}


def feeds_of(case: Case) -> dict[str, NDArray]:
    """Returns what a gradient graph of a case is given: its operands and c."""
    result = case.result_type()
    rng = np.random.default_rng(zlib.crc32(case.id.encode()))
    c = rng.standard_normal(result.shape)
    kind = next(a.dtype for a in case.inputs if a.dtype.kind == "f")
    return {**{f"x{i}": a for i, a in enumerate(case.inputs)}, "c": c.astype(kind)}


def compare(case: Case) -> Compared:
    """Compares the gradient rule of a case's op with central differences."""
    wide = in_float64(case)
    graph, smooth = gradient_graph(wide)
    feeds = feeds_of(wide)
    got = evaluate(graph, feeds)
    rng = np.random.default_rng(1)
    total = Compared()
    for operand in smooth:
        total = _merge(total, _compare_operand(wide, operand, got[f"g{operand}"], feeds["c"], rng))
    return total


def _merge(a: Compared, b: Compared) -> Compared:
    return Compared(
        a.directions + b.directions, a.kinks + b.kinks, max(a.error, b.error), a.wrong or b.wrong
    )


def _compare_operand(
    case: Case, operand: int, got: NDArray, c: NDArray, rng: np.random.Generator
) -> Compared:
    x = case.inputs[operand]
    if got.shape != x.shape:
        return Compared(wrong=f"operand {operand}: a gradient of {got.shape} for {x.shape}")
    if not np.isfinite(got).all():
        return Compared(wrong=f"operand {operand}: a gradient that is not finite")
    count = DIRECTIONS if x.size else 0
    directions: list[NDArray] = [np.asarray(rng.standard_normal(x.shape)) for _ in range(count)]
    for at in np.argsort(-np.abs(got), axis=None)[:ELEMENTS]:
        one = np.zeros(x.shape)
        one.flat[at] = 1
        directions.append(one)
    total = Compared()
    scale = max(1.0, float(np.abs(x).max(initial=0.0)))
    for direction in directions:
        step = STEP * scale
        middle, right, left = (
            float((_result(case, operand, x + s * step * direction) * c).sum()) for s in (0, 1, -1)
        )
        ahead, behind = (right - middle) / step, (middle - left) / step
        numeric, exact = (right - left) / (2 * step), float((got * direction).sum())
        size = float(np.abs(got * direction).sum()) + abs(numeric)
        # what float64 can tell of a difference of sums of such a size
        noise = 1e-15 * (abs(right) + abs(left) + float(np.abs(c).sum())) / step
        error = abs(numeric - exact)
        if error <= TOLERANCE * size + 50 * noise:
            total = _merge(total, Compared(1, 0, error / size if size else 0.0))
        elif not np.isfinite(numeric) or abs(ahead - behind) > KINK * size:
            total = _merge(total, Compared(0, 1))
        else:
            text = f"operand {operand}: {exact:.6g} where differences give {numeric:.6g}"
            return _merge(total, Compared(wrong=text))
    return total


def _result(case: Case, operand: int, x: NDArray) -> NDArray:
    inputs = (*case.inputs[:operand], x, *case.inputs[operand + 1 :])
    return Case(case.op, inputs, case.attrs).expected()
