"""CPU kernels of convolutions and pools: native loops, or numpy if these are not built.

All float32 convolutions use the native loops (native/cpu_kernels/conv/), whatever the window. The
loops are split among threads by images and channels, read each tap of adjacent results as one
vector, and fuse bias, residual and activation. In measurements, OpenBLAS products are faster only
for 1 x 1 windows, by less than the extra pass for bias and activation. Integers are computed as
float32 if all sums are exact, as for grouped int8 values, else by numpy as float64. Examples:
tests/ops/native/test_conv_loops.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from ...common.dtypes import NDArray, Shape
from ...ir import cpu_kernel
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, rows_of_piece
from ..elementwise.epilogue import attrs_without_epilogue, program_of
from ..elementwise.fused_elementwise import program_of as fused_program_of
from ..elementwise.pointwise import parameters_of
from ..lowering import native_kernels
from .pool_reference import pool_window, window_counts
from .window import Window

Reference = Callable[[tuple[NDArray, ...], Attrs], NDArray]
CHANNELS = 8
"""Channels that the native loops compute together."""


def groups_of(x: NDArray, w: NDArray, attrs: Attrs) -> int:
    """Return the groups of a call, or of a piece, which may have fewer."""
    return x.shape[1] // w.shape[1] if w.shape[1] else attrs.as_int("groups")


def conv_cpu_kernel(reference: Reference) -> CpuKernel:
    """Return the CPU kernel of convolutions; `reference` has no epilogue."""

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        kind = None if out.dtype.kind == "f" else exact_floats(inputs)
        if kind is not None:
            sums = np.empty(out.shape, kind)
            compute(tuple(x.astype(kind) for x in inputs), attrs, sums)
            whole = sums if kind is np.float32 else sums.astype(np.int64)  # modulo 2**32
            np.copyto(out, whole, casting="unsafe")
        elif not _run_native(inputs, attrs, out):
            _run_numpy(reference, inputs, attrs, out)

    return CpuKernel(compute, _cut, fused=_run_native)


def exact_floats(inputs: tuple[NDArray, ...]) -> type[np.floating[Any]] | None:
    """Return the float type that is exact for all sums of an integer convolution, or None."""
    x, w, *bias = inputs
    most = _extent(x) * _extent(w) * math.prod(w.shape[1:]) + sum(map(_extent, bias))
    return next((kind for kind in (np.float32, np.float64) if most < 2 / np.finfo(kind).eps), None)


def _extent(values: NDArray) -> int:
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


# -- native loops ------------------------------------------------------------------------------


def _run_native(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> bool:
    """Compute a call with its epilogue; return False if numpy has to compute it instead."""
    steps, (x, w, *rest) = _steps(attrs), inputs
    bias = next((extra for extra in rest if extra.ndim == 1), None)
    residual = next((extra for extra in rest if extra.ndim > 1), None)
    if steps is None:
        return False
    return native_kernels.conv(x, w, bias, residual, out, _sliding(attrs), steps)


@lru_cache(maxsize=1024)
def _sliding(attrs: Attrs) -> Any:
    return native_kernels.native.SlidingWindow(
        *(attrs.as_ints(name) for name in ("stride", "dilation", "begin"))
    )


@lru_cache(maxsize=1024)
def _steps(attrs: Attrs) -> Any:
    """Return the encoded epilogue for the native loops, or None if they do not support it."""
    if not native_kernels.conv_epilogue_ops():
        return None
    found = program_of(attrs)
    if found is None:
        return native_kernels.native.FusedProgram(1, [], [])
    operands, program = found[0], fused_program_of(found[1])
    steps = [
        (op.name, at[0], at[-1], *parameters_of(op.name, extra)) for op, at, extra in program.steps
    ]
    if any(name not in native_kernels.conv_epilogue_ops() for name, *_ in steps):
        return None
    return native_kernels.native.FusedProgram(
        operands, [float(value) for value in program.values], steps
    )


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by images and channels, in whole groups if there are several.

    Without native loops, channels are split only if each one has its own weights.
    """
    x, w = inputs[:2]
    groups, (images, channels) = groups_of(x, w, attrs), out.shape[:2]
    alone = groups == channels == x.shape[1]
    if not alone and (_steps(attrs) is None or out.dtype != np.float32):
        yield inputs, out
        return
    unit = channels // groups if groups > 1 else CHANNELS
    flops = 2 * math.prod(out.shape) * math.prod(w.shape[1:])
    pieces = max(-(-flops // cpu_kernel.LONG), -(-out.size // cpu_kernel.BLOCK))
    if groups == 1:
        pieces = max(min(pieces, cpu_kernel.SHARES), images)
    if pieces == 1:
        yield inputs, out
        return
    each = -(-images * channels // pieces)
    step = -(-min(each, channels) // unit) * unit
    taken = w.shape[1] if groups > 1 else 0
    for image, first in product(range(images), range(0, channels, step)):
        own, there = slice(first, first + step), slice(image, image + 1)
        group = first // unit
        read = slice(group * taken, (group + step // unit) * taken) if taken else slice(None)
        rest = tuple(g[own] if g.ndim == 1 else g[there, own] for g in inputs[2:])
        yield (x[there, read], w[own], *rest), out[there, own]


# -- numpy -------------------------------------------------------------------------------------


def _run_numpy(
    reference: Reference, inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray
) -> None:
    """Compute 1 x 1 windows as products, and depthwise windows as sums of shifted images.

    All other windows use the reference.
    """
    x, w = inputs[:2]
    names = ("stride", "dilation", "begin", "end")
    window = Window(x.shape[2:], w.shape[2:], *(attrs.as_ints(name) for name in names))
    groups, axes = groups_of(x, w, attrs), len(window.sizes)
    if w.shape[1] == 1 and w.shape[0] == x.shape[1]:
        _sum_of_shifted(x, w, window, out)
    elif window.pointwise:
        values = x.reshape(x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:]))
        weights = w.reshape(groups, w.shape[0] // groups, w.shape[1])
        target = out.reshape(*values.shape[:2], weights.shape[1], values.shape[3])
        np.matmul(weights, values, out=target)
    else:
        out[...] = reference(inputs[:2], attrs_without_epilogue(attrs))
    if len(inputs) > 2:
        out += inputs[2].reshape(-1, *(1,) * axes)


def _sum_of_shifted(x: NDArray, w: NDArray, window: Window, out: NDArray) -> None:
    pads = ((0, 0), (0, 0), *zip(window.begin, window.end, strict=True))
    padded, product_of_tap = np.pad(x, pads), np.empty_like(out)
    weights = w[:, 0].reshape(-1, window.taps)
    for number, tap in enumerate(product(*map(range, window.kernel))):
        places = tuple(
            slice(t * d, t * d + (count - 1) * stride + 1, stride)
            for t, d, count, stride in zip(
                tap, window.dilation, out.shape[2:], window.stride, strict=True
            )
        )
        at = (slice(None), slice(None), *places)
        weight = weights[:, number].reshape(-1, *(1,) * len(window.sizes))
        np.multiply(padded[at], weight, out=product_of_tap if number else out)
        if number:
            out += product_of_tap


# -- pools -------------------------------------------------------------------------------------


def pool_cpu_kernel(kind: str, reference: Reference) -> CpuKernel:
    """Return the CPU kernel of a pool; `kind` is "max" or "mean"."""

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        x = inputs[0]
        counts = counts_of(kind, x.shape[2:], attrs)
        kernel = attrs.as_ints("kernel")
        if not native_kernels.pool(kind, x, out, kernel, lambda: _sliding(attrs), counts):
            out[...] = reference(inputs, attrs)

    return CpuKernel(compute, _cut_planes)


@lru_cache(maxsize=1024)
def counts_of(kind: str, sizes: Shape, attrs: Attrs) -> tuple[tuple[float, ...], ...]:
    """Return the number of positions that each window counts along each axis; empty for "max"."""
    if kind != "mean":
        return ()
    window = pool_window((1, 1, *sizes), attrs)
    padding = attrs.as_bool("count_include_pad")
    counts = window_counts(window, attrs.as_ints("sizes"), padding)
    return tuple(tuple(map(float, along)) for along in counts)


def _cut_planes(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by images and channels."""
    x = inputs[0]
    step = rows_of_piece(x.shape[0] * x.shape[1], max(x.size, out.size))
    for image, first in product(range(x.shape[0]), range(0, x.shape[1], step)):
        at = (slice(image, image + 1), slice(first, first + step))
        yield (x[at],), out[at]
