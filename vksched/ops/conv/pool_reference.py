"""Pools in numpy, reduced along one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...common.dtypes import NDArray, Shape
from ...ir.attrs import Attrs
from .window import Window

Combine = Callable[[NDArray, NDArray], NDArray]


def pool_window(x: Shape, attrs: Attrs) -> Window:
    """Return the window of a pool over its input's spatial axes."""
    names = ("kernel", "stride", "dilation", "begin", "end")
    return Window(x[2:], *(attrs.as_ints(name) for name in names))


def _along(x: NDArray, axis: int, places: slice) -> NDArray:
    key = (slice(None),) * axis + (places,)
    return np.asarray(x[key])


def _slide(x: NDArray, window: Window, sizes: Shape, fill: float, combine: Combine) -> NDArray:
    """Combine the values of all windows, axis by axis.

    `fill` is the value of positions outside of x.
    """
    for axis, size in enumerate(sizes):
        stride, dilation = window.stride[axis], window.dilation[axis]
        last = (size - 1) * stride + window.extent[axis]
        after = max(0, last - window.begin[axis] - window.sizes[axis])
        widths = [(0, 0)] * x.ndim
        widths[2 + axis] = (window.begin[axis], after)
        padded = np.pad(x, widths, constant_values=fill) if any(map(any, widths)) else x
        taps = (
            _along(padded, 2 + axis, slice(first, first + (size - 1) * stride + 1, stride))
            for first in range(0, window.extent[axis], dilation)
        )
        x = next(taps)
        for tap in taps:
            x = combine(x, tap)
    return x


def window_counts(window: Window, sizes: Shape, count_padding: bool) -> list[NDArray]:
    """Return the number of positions that each window of a mean counts, for each axis."""
    out = []
    for axis, size in enumerate(sizes):
        starts = np.arange(size) * window.stride[axis] - window.begin[axis]
        places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilation[axis]
        low, high = 0, window.sizes[axis]
        if count_padding:
            low, high = -window.begin[axis], high + window.end[axis]
        out.append(((places >= low) & (places < high)).sum(1))
    return out


def _least(dtype: np.dtype[Any]) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def max_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return the maximum of each window; the least value for a window of padding only."""
    x = inputs[0]
    window, sizes = pool_window(x.shape, attrs), attrs.as_ints("sizes")
    return _slide(x, window, sizes, _least(x.dtype), np.maximum)


def average_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return the mean of each window; 0 for an empty window."""
    x = inputs[0]
    window, sizes = pool_window(x.shape, attrs), attrs.as_ints("sizes")
    counts = np.ones((), np.int64)
    for inside in window_counts(window, sizes, attrs.as_bool("count_include_pad")):
        counts = counts[..., None] * inside
    counts = np.maximum(counts, 1)
    return np.asarray(_slide(x, window, sizes, 0, np.add) / counts.astype(x.dtype))


def lp_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return the p-norm of each window."""
    x, p = inputs[0], attrs.as_float("p")
    window, sizes = pool_window(x.shape, attrs), attrs.as_ints("sizes")
    powers = _slide(np.abs(x) ** x.dtype.type(p), window, sizes, 0, np.add)
    return np.asarray(powers ** x.dtype.type(1 / p))


def indices_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Find the first step of each window with its maximum, and return its flat index in x."""
    x = inputs[0]
    window, sizes = pool_window(x.shape, attrs), attrs.as_ints("sizes")
    widths = [(0, 0), (0, 0)]
    for axis, size in enumerate(sizes):
        last = (size - 1) * window.stride[axis] + window.extent[axis]
        after = max(0, last - window.begin[axis] - window.sizes[axis])
        widths.append((window.begin[axis], after))
    padded = np.pad(x, widths)
    inside = np.pad(np.ones((1, 1, *window.sizes), bool), widths)
    chosen = np.full((*x.shape[:2], *sizes), -1, np.int64)
    best = np.zeros(chosen.shape, x.dtype)
    for number, tap in enumerate(np.ndindex(*window.kernel)):
        values, there = padded, inside
        for axis, step in enumerate(tap):
            first, stride = step * window.dilation[axis], window.stride[axis]
            places = slice(first, first + (sizes[axis] - 1) * stride + 1, stride)
            values, there = _along(values, 2 + axis, places), _along(there, 2 + axis, places)
        larger = (values > best) | ((values != values) & (best == best))
        wins = there & (larger | (chosen < 0))
        np.copyto(best, values, where=wins)
        np.copyto(chosen, number, where=wins)
    out = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(sizes))
    for axis, steps in enumerate(np.unravel_index(np.maximum(chosen, 0), window.kernel)):
        line = np.arange(sizes[axis]) * window.stride[axis] - window.begin[axis]
        line = line.reshape(-1, *(1,) * (len(sizes) - 1 - axis))
        out = out * window.sizes[axis] + line + steps * window.dilation[axis]
    return np.asarray(np.where(chosen < 0, -1, out))


def adaptive_reference(combine: Callable[..., NDArray]) -> Callable[..., NDArray]:
    """Return the reference of an adaptive pool that combines values along an axis."""

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x, sizes = inputs[0], attrs.as_ints("sizes")
        if 0 in (x.size, *sizes):
            return np.zeros((*x.shape[:2], *sizes), x.dtype)
        for axis, count in enumerate(sizes, start=2):
            size = x.shape[axis]
            spans = (slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count))
            parts = [combine(_along(x, axis, span), axis=axis) for span in spans]
            x = np.stack(parts, axis) if parts else _along(x, axis, slice(0))
        return x

    return reference
