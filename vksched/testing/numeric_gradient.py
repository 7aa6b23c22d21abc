"""Numeric gradient: compare gradient rules with central differences, in float64 with numpy.

    f(x) = sum(op(x) * c)                                      c: fixed random numbers
    <grad f, d>  against  (f(x + h d) - f(x - h d)) / 2 h      d: random, or one element

For the second order f is the sum of op's gradients, each times fixed random numbers.

A direction with an error is bisected down to one element: is the rule wrong there, or are the
differences inconclusive? They are at a kink, such as relu at 0 or a tie of max, where left and
right differences disagree; and near a pole, where they depend on the step. These elements do not
count, nor elements with an infinite gradient, such as sqrt's at 0.

Complexity: two evaluations of f per direction, and about 2 log n for one with an error. Examples:
tests/autograd/test_rules.py, tests/autograd/test_wrong_rules.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..autograd.reverse_mode import vjp
from ..common.dtypes import (
    FLOAT32,
    FLOAT64,
    FLOATS,
    NARROW,
    NDArray,
    canonical_dtype,
    numpy_dtype,
)
from ..ir.build_graph import build_graph
from ..ir.evaluate import compute
from ..ir.graph import Graph
from ..ir.op import EPILOGUE
from ..ir.tensor import Tensor, apply, constant, input, weight
from ..ir.vjp import is_smooth, rule_of
from .directional_slope import DirectionalSlope
from .op_cases.op_sample import OpSample
from .op_table import is_taken

STEP = 1e-5
"""h, for values near 1."""
DIRECTIONS, LARGEST_ELEMENTS, OTHER_ELEMENTS = 3, 4, 2
"""Per operand: random directions, elements with the largest gradients, and random elements."""
TOLERANCE = 2e-6
"""Tolerance of differences, relative to the largest term."""
NOISE = 1e-13
"""Error of a difference of two float64 sums, relative to the terms that differ."""
FINER = (1.0, 0.1, 1e-3, 1e-6)
"""Factors of the step at an element with inconclusive differences."""
STEPS = {"ceil", "floor", "floor_divide", "round", "trunc"}
"""Ops that are constant between jumps by 1."""
MAX_STEPS = 0.1 / (STEP * FINER[-1])
"""Maximum number of steps of such an op's value, because the smallest h must be a small part of
one.
"""
MAX_KINKS = 6
"""A direction that loses more elements to kinks does not count."""
GROWS = 1.2
"""Minimum growth of a difference at a singularity, for a step of a hundredth."""
STRAIGHT_THROUGH = {"reduce_precision"}
"""Ops with a straight-through gradient, as in quantized training."""
LARGEST = 40_000
"""Maximum number of elements of operands and result, so that a case takes milliseconds."""


Rounded = Callable[[NDArray, tuple[NDArray, ...]], NDArray]


@dataclass(frozen=True, slots=True)
class GradientComparison:
    """Result of the comparison of one case.

    directions: number of compared ones. kinks: number of skipped ones. error: largest difference
    beyond rounding of float64, relative to the largest term. wrong: description of an error, or "".
    """

    directions: int = 0
    kinks: int = 0
    error: float = 0.0
    wrong: str = ""

    def __add__(self, other: GradientComparison) -> GradientComparison:
        return GradientComparison(
            self.directions + other.directions,
            self.kinks + other.kinks,
            max(self.error, other.error),
            self.wrong or other.wrong,
        )


@dataclass(frozen=True)
class Function:
    """A function of arrays and its gradients, as tensors.

    results: its results by name. gradients: by the name of each differentiable input. feeds: array
    of each input; "x0", "x1", ... are those of the case. Each result n has a further input "c n":
    its factor in the sum whose gradients these are.
    """

    inputs: Mapping[str, Tensor]
    results: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    feeds: Mapping[str, NDArray]

    @cached_property
    def forward(self) -> Graph:
        return build_graph(dict(self.results))[0]

    @cached_property
    def backward(self) -> Graph:
        return build_graph(dict(self.gradients))[0]

    def terms(self, feeds: Mapping[str, NDArray]) -> list[NDArray]:
        """Return the terms of the sum: each result times its factor."""
        outputs = evaluate(self.forward, feeds)
        with np.errstate(all="ignore"):
            return [outputs[name] * feeds[f"c {name}"] for name in self.results]

    @cached_property
    def second(self) -> Function:
        """Return the gradients as a function, whose own gradients are of second order."""
        results = {f"d {name}": t for name, t in self.gradients.items()}
        return _function(self.inputs, results, self.feeds)


def why_not_compared(case: OpSample) -> str:
    """Return why a case cannot be compared: its op has no rule, or differences are inconclusive."""
    if rule_of(case.op) is None:
        return "the op has no rule"
    if case.large or sum(a.size for a in case.inputs) > LARGEST:
        return "it is large"
    if EPILOGUE in case.attrs:
        return "it is fused, and gradients are taken before that"
    if case.op in STRAIGHT_THROUGH:
        return "its rule takes rounding for the identity"
    wide = in_float64(case)
    if not is_taken(wide):
        return "the op takes no float64"
    floats = [a for a in wide.inputs if a.dtype.kind == "f"]
    if not any(a.size for a in floats):
        return "no operand has floats"
    if not all(np.isfinite(a).all() for a in floats):
        return "operands are not finite"
    result = wide.expected()
    if result.dtype != np.float64 or not result.size:
        return "the result has no floats"
    if result.size > LARGEST:
        return "it is large"
    return "" if np.isfinite(result).all() else "the result is not finite"


def is_compared(case: OpSample) -> bool:
    """Return True if a case can be compared."""
    return not why_not_compared(case)


def in_float64(case: OpSample) -> OpSample:
    """Return a case with all its floats in float64, including types in attributes."""
    return _in_floats(case, FLOAT64)


def in_float32(case: OpSample) -> OpSample:
    """Return a case with all its floats in float32, as devices compute them."""
    return _in_floats(case, FLOAT32)


def _in_floats(case: OpSample, dtype: str) -> OpSample:
    attrs = {
        name: dtype if name in ("to", "dtype") and value in FLOATS else value
        for name, value in case.attrs.items()
    }
    return replace(case, attrs=attrs).as_dtypes(dict.fromkeys(FLOATS, dtype))


def function_of(case: OpSample) -> Function:
    """Return the op of a case as a function of its operands.

    Positions are constants, because their values must stay valid. Raise VkschedError if the op has
    no rule, or its rule fails.
    """
    inputs: dict[str, Tensor] = {}
    operands: list[Tensor] = []
    feeds: dict[str, NDArray] = {}
    for i, array in enumerate(case.inputs):
        dtype = canonical_dtype(array.dtype, NARROW)
        if dtype in NARROW:
            operands.append(weight(array, f"x{i}"))
        elif i in case.declaration.indices:
            operands.append(constant(array))
        else:
            operands.append(input(f"x{i}", array.shape, dtype))
            inputs[f"x{i}"], feeds[f"x{i}"] = operands[-1], array
    seed = f"{case.op} {[a.shape for a in case.inputs]}"  # equal in each type
    return _function(inputs, {"y": apply(case.op, operands, case.attrs)}, feeds, seed)


def _function(
    inputs: Mapping[str, Tensor],
    results: Mapping[str, Tensor],
    feeds: Mapping[str, NDArray],
    seed: str = "second order",
) -> Function:
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    inputs, feeds, factors = dict(inputs), dict(feeds), []
    smooth = {name: t for name, t in inputs.items() if is_smooth(t)}
    for name, result in results.items():
        factors.append(input(f"c {name}", result.shape, result.dtype))
        inputs[f"c {name}"] = factors[-1]
        # equal numbers in float32 and in float64
        c = rng.standard_normal(result.shape).astype(np.float32)
        feeds[f"c {name}"] = c.astype(numpy_dtype(result.dtype))
    gradients = vjp(list(results.values()), factors, smooth, missing="zeros")
    return Function(inputs, results, gradients, feeds)


def evaluate(
    graph: Graph, feeds: Mapping[str, NDArray], rounded: Rounded | None = None
) -> dict[str, NDArray]:
    """Return the outputs of a graph with the numpy references only. rounded: maps each intermediate
    value and input, with its operands, to a replacement.
    """
    values = _values(graph, feeds, rounded)
    return {name: values[i] for name, i in graph.outputs}


def _values(
    graph: Graph, feeds: Mapping[str, NDArray], rounded: Rounded | None = None
) -> dict[int, NDArray]:
    values = graph.arrays()
    operands: tuple[NDArray, ...]
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op == "input":
                operands, result = (), feeds[node.name]
            elif not node.declaration.leaf:
                operands = tuple(values[i] for i in node.inputs)
                result = np.asarray(compute(node.declaration, operands, node.attrs))
            else:
                continue
            values[node.id] = rounded(result, operands) if rounded else result
    return values


def compare(case: OpSample) -> GradientComparison:
    """Compare the gradient rule of a case's op with central differences."""
    return compare_function(function_of(in_float64(case)))


def compare_second(case: OpSample) -> GradientComparison:
    """Compare the gradient of the rule itself with central differences of the rule."""
    return compare_function(function_of(in_float64(case)).second)


def why_not_second(case: OpSample) -> str:
    """Return why the gradient of a case's gradient is not compared: it has jumps, like that of
    fmod(a, b), more closely than differences can resolve.
    """
    function = function_of(in_float64(case)).second
    values = _values(function.forward, function.feeds)
    for node in function.forward.nodes:
        if node.op in STEPS and float(np.abs(values[node.id]).max(initial=0.0)) > MAX_STEPS:
            return "the gradient has steps too near to each other"
    return ""


def compare_function(function: Function) -> GradientComparison:
    """Compare the gradients of a function of float64 with central differences."""
    got = evaluate(function.backward, function.feeds)
    rng = np.random.default_rng(1)
    total = GradientComparison()
    for name, gradient in got.items():
        found = _Differences(function, name, gradient).compare(rng)
        total += replace(found, wrong=found.wrong and f"by {name}: {found.wrong}")
    return total


class _Differences:
    """Differences of a function along directions of one of its inputs, compared with the
    gradient.
    """

    def __init__(self, function: Function, name: str, got: NDArray) -> None:
        self._function, self._name = function, name
        self._x = function.feeds[name]
        self._there = np.isfinite(got) if got.shape == self._x.shape else np.ones(got.shape, bool)
        self._got = np.where(self._there, got, 0.0)
        self._middle = function.terms(function.feeds)
        factors = (function.feeds[f"c {name}"] for name in function.results)
        most = max(float(np.abs(c).max(initial=0.0)) for c in factors)
        # terms, and bounds of the sums inside them
        self._added_up = sum(float(np.abs(term).sum()) for term in self._middle)
        self._added_up += most * float(np.abs(self._x).max(initial=0.0))

    def compare(self, rng: np.random.Generator) -> GradientComparison:
        if self._got.shape != self._x.shape:
            return GradientComparison(wrong=f"a gradient of {self._got.shape} for {self._x.shape}")
        singular = np.flatnonzero(~self._there)
        total = GradientComparison(kinks=len(singular))
        for at in singular[: 2 * LARGEST_ELEMENTS]:
            if not self._is_singular(_unit(self._x, at)):
                return GradientComparison(wrong="no number where differences give one")
        for direction in _directions(self._got, rng):
            total += self._along(np.where(self._there, direction, 0.0))
            if total.wrong:
                break
        return total

    def _along(self, direction: NDArray) -> GradientComparison:
        """Compare one direction; for an error find the responsible element, and continue without it
        if it is a kink.
        """
        kinks = 0
        for _ in range(MAX_KINKS):
            found = self._slope(direction)
            if found.error <= TOLERANCE:
                return GradientComparison(1, kinks, found.error)
            worst = self._worst(direction)
            judged = self._element(worst)
            if judged.wrong or np.count_nonzero(direction) <= 1:
                return judged
            kinks += judged.kinks
            direction = np.where(_unit(direction, worst), 0.0, direction)
        return GradientComparison(0, kinks)

    def _worst(self, direction: NDArray) -> int:
        """Return the element with the wrong slope, found by bisection."""
        among = np.flatnonzero(direction)
        while len(among) > 1:
            halves = among[: len(among) // 2], among[len(among) // 2 :]
            off = []
            for half in halves:
                part = np.zeros(direction.shape)
                part.flat[half] = direction.flat[half]
                found = self._slope(part)
                off.append(np.nan_to_num(abs(found.numeric - found.exact), nan=np.inf))
            among = halves[int(off[1] > off[0])]
        return int(among[0]) if len(among) else 0

    def _element(self, at: int) -> GradientComparison:
        """Compare one element, with decreasing steps if the first is inconclusive.

        A rule is wrong if all smaller steps agree, down to those that rounding hides: over many
        jumps, like those of fmod(a, b) with b far below a, a step finds a slope that no point has.
        """
        tried = self._ladder(at)
        is_resolved = False
        for i, slope in enumerate(tried):
            if not slope.tells:
                continue
            is_resolved = True
            if slope.error <= TOLERANCE:
                return GradientComparison(1, 0, slope.error)
            if slope.is_kink:
                continue
            off = abs(slope.numeric - slope.exact)
            finer = [other for other in tried[i + 1 :] if other.noise <= off / 4]
            if finer and all(slope.is_steady(other) for other in finer):
                text = f"{slope.exact:.6g} where differences give {slope.numeric:.6g}"
                return GradientComparison(wrong=text)
        return GradientComparison(0, int(is_resolved))  # no kink if rounding hides all

    def _ladder(self, at: int) -> list[DirectionalSlope]:
        """Return the slopes along one element, from the largest step to the smallest."""
        unit, own = _unit(self._x, at), abs(float(self._x.flat[at]))
        steps = {STEP * finer: self._slope(unit, finer) for finer in FINER}
        if 0 < own < 1:
            for finer in FINER:
                steps[STEP * finer * own] = self._slope(unit, finer, own).per(own)
        return [steps[step] for step in sorted(steps, reverse=True)]

    def _slope(
        self, direction: NDArray, finer: float = 1.0, scale: float = 0.0
    ) -> DirectionalSlope:
        """Return the slope along a direction, each element in units of its size. finer: factor of
        the step. scale: another unit.
        """
        units = np.maximum(np.abs(self._x), 1.0) if not scale else np.full(self._x.shape, scale)
        step = STEP * finer
        with np.errstate(all="ignore"):
            change = _without_rounding(self._x, step * direction * units)
            right, left = self._at(change), self._at(-change)
            ahead = [a - b for a, b in zip(right, self._middle, strict=True)]
            behind = [a - b for a, b in zip(self._middle, left, strict=True)]
            changed = [
                np.where((a != 0) | (b != 0), np.abs(t), 0.0).sum()
                for a, b, t in zip(ahead, behind, self._middle, strict=True)
            ]
            to_right, to_left = (
                sum(float(t.sum()) for t in side) / step for side in (ahead, behind)
            )
            sides = list(zip(ahead, behind, strict=True))
            low = sum(float(np.minimum(a, b).sum()) for a, b in sides) / step
            high = sum(float(np.maximum(a, b).sum()) for a, b in sides) / step
            exact, numeric = float((self._got * change).sum()) / step, (to_right + to_left) / 2
            noise = NOISE * float(sum(changed))
            return DirectionalSlope(
                exact,
                numeric,
                to_right,
                to_left,
                low,
                high,
                noise / step,
                NOISE * self._added_up / step,
            )

    def _at(self, change: NDArray) -> list[NDArray]:
        return self._function.terms({**self._function.feeds, self._name: self._x + change})

    def _is_singular(self, direction: NDArray) -> bool:
        """Return True if a one-sided slope has no limit."""
        far, near = self._slope(direction), self._slope(direction, 0.01)
        for one, other in ((far.ahead, near.ahead), (far.behind, near.behind)):
            if not np.isfinite([one, other]).all() or abs(other) > GROWS * abs(one) > 0:
                return True
        return False


def _directions(got: NDArray, rng: np.random.Generator) -> Iterator[NDArray]:
    if not got.size:
        return
    for _ in range(DIRECTIONS):
        yield np.asarray(rng.standard_normal(got.shape))
    largest = np.argsort(-np.abs(got), axis=None)[:LARGEST_ELEMENTS]
    others = rng.permutation(got.size)[:OTHER_ELEMENTS]
    for at in dict.fromkeys([*largest, *others]):
        yield _unit(got, at)


def _without_rounding(x: NDArray, change: NDArray) -> NDArray:
    """Return nearby changes that can be added to and subtracted from x exactly."""
    most = 2 * (np.abs(x) + np.abs(change))
    return np.asarray((most + change) - most)


def _unit(like: NDArray, at: int) -> NDArray:
    one = np.zeros(like.shape)
    one.flat[at] = 1
    return one
