"""Gradient rules of the pools.

A mean and a p-norm are sums over windows, one axis after the other. So is their gradient: a
position sums the gradients of all windows that contain it. `resample` does this with a table for
each axis.

    x   0 1 2 3 4      windows of 3, stride 2: A = 0 1 2, B = 2 3 4
    dx  A A A+B B B    each divided by the number of positions that its mean counts

The gradient of a maximum is accumulated at its position, the first one of equal values, as in
PyTorch. A window of padding only has no gradient. Time is linear in the table and in dy. Examples:
tests/autograd/test_rules_windows.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...common.dtypes import NDArray
from ...ir.tensor import Tensor, apply, constant
from ...ir.vjp import VjpContext, VjpResult, gradient, no_gradient
from ..creation.create import zeros, zeros_like
from ..elementwise.binary import equal, mul, pow
from ..elementwise.fp16 import computed_wide
from ..elementwise.select import where
from ..elementwise.unary import abs, sign
from ..layout.index import gather
from ..layout.reshape import reshape
from ..layout.scatter import scatter_elements
from ..reduction.resample import resample_transposed
from .pool import max_pool_indices
from .pool_reference import pool_window
from .window import Window

Taps = tuple[NDArray, NDArray]
"""Positions and weights of the windows along one axis; both (windows, positions)."""
_NAMES = ("kernel", "stride", "dilation", "begin", "end", "sizes")

no_gradient("gives positions", "max_pool_indices")


# -- sums over windows -------------------------------------------------------------------------


@gradient("average_pool")
def _average(call: VjpContext) -> VjpResult:
    x, counts_padding = call.inputs[0], call.attrs.as_bool("count_include_pad")
    window, counts = pool_window(x.shape, call.attrs), call.output.shape[2:]
    taps = []
    for axis, count in enumerate(counts):
        places, inside = _window_taps(window, axis, count)
        counted = inside
        if counts_padding:
            counted = places >= -window.begin[axis]
            counted &= places < window.sizes[axis] + window.end[axis]
        taps.append((places, inside / np.maximum(counted.sum(1, keepdims=True), 1)))
    return (_scatter_windows(call.grad, x, taps),)


@gradient("adaptive_average_pool")
def _adaptive_average(call: VjpContext) -> VjpResult:
    x = call.inputs[0]
    taps = [
        _adaptive_taps(*sizes) for sizes in zip(x.shape[2:], call.output.shape[2:], strict=True)
    ]
    means = [(places, inside / inside.sum(1, keepdims=True)) for places, inside in taps]
    return (_scatter_windows(call.grad, x, means),)


@gradient("lp_pool")
def _lp(call: VjpContext) -> VjpResult:
    """Return sign(x) |x|^(p-1) times the sum of dy y^(1-p); 0 at x = 0, also for p below 1."""
    x, y, p = call.inputs[0], call.output, call.attrs.as_float("p")
    window = pool_window(x.shape, call.attrs)
    taps = [_window_taps(window, axis, count) for axis, count in enumerate(y.shape[2:])]

    def build(x: Tensor, y: Tensor, g: Tensor, name: str | None) -> Tensor:
        if p == 1:
            return mul(sign(x), _scatter_windows(g, x, taps), name=name)
        above = where(equal(y, 0), 1.0, y)  # a window of zeros has gradient 0, without 0 / 0
        if p == 2:
            return mul(x, _scatter_windows(g / above, x, taps), name=name)
        size = where(equal(x, 0), 1.0, abs(x))
        steep = sign(x) * pow(size, p - 1)
        return mul(steep, _scatter_windows(g * pow(above, 1 - p), x, taps), name=name)

    return (computed_wide(build, (x, y, call.grad), None),)


def _window_taps(window: Window, axis: int, count: int) -> Taps:
    """Return the positions of each window along an axis, and a mask of those inside x."""
    starts = np.arange(count, dtype=np.int64) * window.stride[axis] - window.begin[axis]
    steps = np.arange(window.kernel[axis], dtype=np.int64) * window.dilation[axis]
    places = starts[:, None] + steps
    return places, (places >= 0) & (places < window.sizes[axis])


def _adaptive_taps(size: int, count: int) -> Taps:
    """Return the positions of each adaptive window along an axis, and a mask.

    Shorter windows repeat their last position; the mask excludes the repetitions.
    """
    numbers = np.arange(count, dtype=np.int64)
    starts, stops = numbers * size // max(count, 1), -(-(numbers + 1) * size // max(count, 1))
    places = starts[:, None] + np.arange((stops - starts).max(initial=0))
    return np.minimum(places, stops[:, None] - 1), places < stops[:, None]


def _scatter_windows(g: Tensor, x: Tensor, taps: Sequence[Taps]) -> Tensor:
    """Return for each position of x the weighted sum of g over the windows that contain it."""
    if g.size == 0 or x.size == 0:
        return zeros_like(x)
    grown = [size / count for size, count in zip(x.shape[2:], g.shape[2:], strict=True)]
    for axis in sorted(range(len(taps)), key=grown.__getitem__):  # axes that grow least go first
        places, weights = taps[axis]
        size = x.shape[2 + axis]
        if not _is_each_place(places, weights, size):
            g = resample_transposed(g, places, weights, 2 + axis, size)
    return g


def _is_each_place(places: NDArray, weights: NDArray, size: int) -> bool:
    each = places.shape == (size, 1) and np.array_equal(places[:, 0], np.arange(size))
    return each and bool((weights == 1).all())


# -- maxima ------------------------------------------------------------------------------------


@gradient("max_pool")
def _max(call: VjpContext) -> VjpResult:
    x, g = call.inputs[0], call.grad
    if g.size == 0 or x.size == 0:
        return (zeros_like(x),)
    window, counts = pool_window(x.shape, call.attrs), g.shape[2:]
    indices = apply("max_pool_indices", (x,), {name: call.attrs[name] for name in _NAMES})
    within = [_window_taps(window, axis, count)[1].any(1) for axis, count in enumerate(counts)]
    if not all(each.all() for each in within):
        held = np.ones((), bool)
        for each in within:
            held = held[..., None] & each
        g = where(constant(held), g, 0.0)
    apart = all(s >= e for s, e in zip(window.stride, window.extent, strict=True))
    return (_scatter_add(g, indices, x, apart and g is call.grad),)


@gradient("adaptive_max_pool")
def _adaptive_max(call: VjpContext) -> VjpResult:
    """Apply the rule of max_pool to windows of equal length, with repeated positions of x."""
    x, g = call.inputs[0], call.grad
    if g.size == 0 or x.size == 0:
        return (zeros_like(x),)
    taps = [_adaptive_taps(*sizes) for sizes in zip(x.shape[2:], g.shape[2:], strict=True)]
    lengths = tuple(places.shape[1] for places, _ in taps)
    repeated = x
    for axis, (places, inside) in enumerate(taps, start=2):
        if not _tiles(places, inside, x.shape[axis]):
            repeated = gather(repeated, places.reshape(-1).astype(np.int32), axis)
    g = _scatter_add(g, max_pool_indices(repeated, lengths), repeated, True)
    for axis, (places, inside) in enumerate(taps, start=2):
        if not _tiles(places, inside, x.shape[axis]):
            flat = places.reshape(-1, 1), inside.reshape(-1, 1)
            g = resample_transposed(g, *flat, axis, x.shape[axis])
    return (g,)


def _tiles(places: NDArray, inside: NDArray, size: int) -> bool:
    return places.size == size and bool(inside.all())


def _scatter_add(g: Tensor, indices: Tensor, x: Tensor, apart: bool) -> Tensor:
    """Return zeros like x with g added at flat indices of x.

    `apart`: all indices are distinct, so no atomic addition is needed.
    """
    rows, size = math.prod(x.shape[:2]), math.prod(x.shape[2:])
    count = g.size // rows
    return reshape(
        scatter_elements(
            zeros((rows, size), x.dtype),
            reshape(indices % size, (rows, count)),
            reshape(g, (rows, count)),
            1,
            "none" if apart else "add",
        ),
        x.shape,
    )
