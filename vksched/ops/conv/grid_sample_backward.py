"""Gradient rule of grid_sample with respect to the image and the grid.

A point has a position on each axis, between taps whose weights are polynomials of f, its distance
from the first tap:

    position = 3.25   taps 3, 4   weights 1 - f, f   f = 0.25        (linear)

The rule consists of elementwise ops, so higher-order gradients need no other rule.

    x:    dy times the weights of all axes, accumulated at the taps
    grid: dy times the taps, summed over channels, times the derivative of the weights

Beyond the borders of x it follows PyTorch: the gradient of the grid is 0 there and at the borders.
The gradient of the grid is 0 for nearest mode. Memory and time are proportional to the number of
taps. Examples: tests/autograd/test_rules_windows.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ...common.dtypes import INT32, NDArray
from ...ir.attrs import Attrs
from ...ir.tensor import Tensor, constant
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..creation.create import zeros, zeros_like
from ..elementwise.binary import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    mul,
)
from ..elementwise.fp16 import all_computed_wide
from ..elementwise.select import cast, clip, where
from ..elementwise.unary import floor, isfinite, isnan, logical_not
from ..elementwise.unary import round as nearest
from ..layout.index import gather_elements
from ..layout.reshape import concat, expand, reshape, slice_
from ..layout.scatter import scatter_elements
from ..reduction.reduce import reduce_sum
from .grid_sample import CUBIC_A, TAPS


@dataclass(frozen=True, slots=True)
class _Axis:
    """Taps of one axis: int32 indices, weights, and derivatives of the weights.

    All are (images, taps, points); derivatives are with respect to the grid.
    """

    size: int
    index: Tensor
    weights: Tensor
    slopes: Tensor


@gradient("grid_sample")
def _grid_sample(call: VjpContext) -> VjpResult:
    x, grid = call.inputs
    if call.grad.size == 0 or x.size == 0:
        return zeros_like(x), zeros_like(grid)

    def build(x: Tensor, grid: Tensor, g: Tensor, name: str | None) -> tuple[Tensor, ...]:
        axes = _axes(x, grid, call.attrs)
        index = _flat(axes, x.shape[1])
        by_x = _by_image(x, g, axes, index)
        if call.attrs.as_str("mode") == "nearest":
            return by_x, zeros_like(grid)
        return by_x, reshape(_grid_gradient(x, g, axes, index), grid.shape)

    return all_computed_wide(build, (x, grid, call.grad), None)


def _by_image(x: Tensor, g: Tensor, axes: Sequence[_Axis], index: Tensor) -> Tensor:
    images, channels, count = index.shape
    points = math.prod(g.shape[2:])
    whole = _product([a.weights for a in axes], axes)
    updates = reshape(g, (images, channels, 1, points)) * reshape(
        whole, (images, 1, count // points, points)
    )
    start = zeros((images, channels, math.prod(x.shape[2:])), x.dtype)
    added = scatter_elements(start, index, reshape(updates, index.shape), 2, "add")
    return reshape(added, x.shape)


def _grid_gradient(x: Tensor, g: Tensor, axes: Sequence[_Axis], index: Tensor) -> Tensor:
    """Return the gradient of the grid: (images, points, coordinates), the innermost axis first."""
    images, channels, count = index.shape
    points = math.prod(g.shape[2:])
    taken = gather_elements(reshape(x, (images, channels, -1)), index, 2)
    products = reshape(taken, (images, channels, count // points, points)) * reshape(
        g, (images, channels, 1, points)
    )
    taps = (a.index.shape[1] for a in axes)
    met = reshape(reduce_sum(products, 1), (images, *taps, points))
    out = []
    for moved in reversed(range(len(axes))):
        factors = [a.slopes if i == moved else a.weights for i, a in enumerate(axes)]
        sums = reduce_sum(met * _product(factors, axes), range(1, 1 + len(axes)))
        out.append(reshape(sums, (images, points, 1)))
    return concat(out, 2)


def _flat(axes: Sequence[_Axis], channels: int) -> Tensor:
    """Return the element index of each tap in its channel: (images, channels, taps * points)."""
    index = _broadcast_axis(axes[0].index, 0, axes)
    for i, a in enumerate(axes[1:], start=1):
        index = index * a.size + _broadcast_axis(a.index, i, axes)
    images = index.shape[0]
    count = math.prod(index.shape[1:])
    return expand(reshape(index, (images, 1, count)), (images, channels, count))


def _product(factors: Sequence[Tensor], axes: Sequence[_Axis]) -> Tensor:
    """Return the product over all axes of one factor per tap: (images, taps..., points)."""
    return reduce(mul, (_broadcast_axis(factor, i, axes) for i, factor in enumerate(factors)))


def _broadcast_axis(t: Tensor, number: int, axes: Sequence[_Axis]) -> Tensor:
    """Reshape (images, taps, points) of one axis to broadcast against the taps of all axes."""
    images, taps, points = t.shape
    shape = (taps if i == number else 1 for i in range(len(axes)))
    return reshape(t, (images, *shape, points))


# -- one axis ----------------------------------------------------------------------------------


def _axes(x: Tensor, grid: Tensor, attrs: Attrs) -> list[_Axis]:
    sizes = x.shape[2:]
    dims, points = len(sizes), math.prod(grid.shape[1:-1])
    listed = reshape(grid, (grid.shape[0], points, dims))
    out = []
    for i, size in enumerate(sizes):
        one = slice_(listed, [dims - 1 - i], [dims - i], [2])
        out.append(_axis(reshape(one, (grid.shape[0], 1, points)), size, attrs))
    return out


def _axis(coordinates: Tensor, size: int, attrs: Attrs) -> _Axis:
    """Return the taps of one axis for coordinates of -1..1, (images, 1, points)."""
    mode, padding = attrs.as_str("mode"), attrs.as_str("padding_mode")
    place, slope, defined = _position(coordinates, size, attrs)
    base = floor(place)
    coefficients = _coefficients(mode)
    first = 1 if mode == "cubic" else 0
    steps = np.arange(TAPS[mode]).reshape(-1, 1) - first
    tap = base + _constant(steps, coordinates)
    if padding == "reflection":
        ends = (0.0, size - 1.0) if attrs.as_bool("align_corners") else (-0.5, size - 0.5)
        inside = equal(clip(tap, 0, size - 1), tap)
        tap = where(inside, tap, nearest(_fold(tap, *ends)[0]))
    index = clip(tap, 0, size - 1)
    read = equal(index, tap) if padding == "zeros" else defined
    f = place - base
    rising = [power * c for power, c in enumerate(coefficients)][1:]
    weights = where(read, _polynomial(coefficients, f), 0.0)
    slopes = where(read, _polynomial(rising, f) * slope, 0.0) if rising else weights
    return _Axis(size, cast(index, INT32), weights, slopes)


def _position(coordinates: Tensor, size: int, attrs: Attrs) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions on the axis, their derivatives, and a mask of the defined ones."""
    mode, aligned = attrs.as_str("mode"), attrs.as_bool("align_corners")
    at = (coordinates + 1) / 2 * (size - 1) if aligned else ((coordinates + 1) * size - 1) / 2
    scale = (size - 1) / 2 if aligned else size / 2
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if mode == "nearest":
        at = nearest(at)
    if attrs.as_str("padding_mode") == "zeros":
        defined = logical_not(isnan(at))
        place = where(defined, clip(at, -3, size + 2), -3.0)  # all taps outside
        return place, _constant(np.full((1, 1), scale), coordinates), defined
    if attrs.as_str("padding_mode") == "reflection":
        place, odd = _fold(at, low, high)
        defined = isfinite(at)
        slope = scale - 2 * scale * odd
    else:
        within = logical_and(greater_equal(at, low), less_equal(at, high))
        place, defined = where(within, at, clip(at, 0, size - 1)), logical_not(isnan(at))
        slope = scale * cast(within, coordinates.dtype)
    place = where(defined, place, 0.0)
    moves = defined
    if mode == "linear":
        moves = logical_and(defined, logical_and(greater(place, 0), less(place, size - 1)))
    return place, where(moves, slope, 0.0), defined


def _fold(at: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return coordinates reflected at both borders, and 1 for those that run backwards, else 0."""
    if high <= low:
        return at * 0, at * 0
    size = high - low
    times = floor((at - low) / size)
    odd = times % 2
    back = where(equal(odd, 1), 2 * low + (times + 1) * size - at, at - times * size)
    return clip(back, low, high), odd


def _coefficients(mode: str) -> list[NDArray]:
    """Return the weights of the taps as polynomials: a column of coefficients per power of f."""
    if mode == "nearest":
        return [np.ones((1, 1))]
    if mode == "linear":
        return [np.array([[1.0], [0.0]]), np.array([[-1.0], [1.0]])]
    a, f = CUBIC_A, np.poly1d([1, 0])
    near, far = np.poly1d([a + 2, -(a + 3), 0, 1]), np.poly1d([a, -5 * a, 8 * a, -4 * a])
    taps = (far(f + 1), near(f), near(1 - f), far(2 - f))
    table = np.array([tap.coeffs[::-1] for tap in taps])
    return [np.asarray(column).reshape(-1, 1) for column in table.T]


def _polynomial(coefficients: Sequence[NDArray], f: Tensor) -> Tensor:
    """Return the sum over k of coefficients[k] * f^k: (images, taps, points)."""
    total = f * 0 + _constant(coefficients[-1], f)
    for column in reversed(coefficients[:-1]):
        total = total * f + _constant(column, f)
    return total


def _constant(values: NDArray, like: Tensor) -> Tensor:
    return constant(np.asarray(values, like.dtype))
