"""Rules for pooling and resizing, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd.reverse_mode import vjp
from ...ir.tensor import Tensor, constant
from ...ops import (
    adaptive_average_pool,
    average_pool,
    full,
    gather,
    grid_sample,
    max_pool,
    max_pool_indices,
    pad,
    remainder,
    reshape,
    resize,
)
from .registry import Call, operand, rule

Ints = Sequence[int]
Factors = Sequence[float | None] | None
GRID_MODES = ("linear", "nearest", "cubic")
GRID_PADDING = ("zeros", "border", "reflection")


def _axes(values: int | Ints, count: int) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * count
    return tuple(values) * count if len(values) == 1 else tuple(values)


def _batched(x: Tensor, axes: int) -> Tensor:
    return x if x.rank == axes + 2 else reshape(x, (1, *x.shape))


def _average(
    call: Call,
    x: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    axes = int(call.op.split("avg_pool")[1][0])
    size, pads = _axes(kernel, axes), _axes(padding, axes)
    steps, whole = _axes(stride, axes) if stride else size, _batched(x, axes)
    if divisor_override is None:
        out = average_pool(
            whole,
            size,
            stride=steps,
            padding=pads * 2,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
        )
    else:  # zeros instead of padding: all windows have the same number of elements
        ends = [
            max(p, _last_end(n, k, s, p, ceil_mode) - n)
            for n, k, s, p in zip(whole.shape[2:], size, steps, pads, strict=True)
        ]
        zeros = pad(whole, list(zip(pads, ends, strict=True)), axes=range(2, whole.rank))
        out = average_pool(zeros, size, stride=steps)
        out = out * operand(math.prod(size) / divisor_override, out.dtype)
    return out if x.rank == axes + 2 else reshape(out, out.shape[1:])


def _last_end(length: int, kernel: int, step: int, padding: int, ceil_mode: bool) -> int:
    """Return the end of the last window of a pooled axis, from the first element."""
    room = length + 2 * padding - kernel
    last = (room + (step - 1 if ceil_mode else 0)) // step
    if last * step >= length + padding:  # a window must not begin beyond the elements
        last -= 1
    return last * step + kernel - padding


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _average(call, x, *args, **kwargs)


@rule("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def avg_pool_backward(call: Call, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    (out,) = vjp([_average(call, x, *args)], [grad], [x])
    return out


def _largest(
    call: Call,
    x: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, dict[str, Any]]:
    axes = int(call.op.split("max_pool")[1][0])
    size = _axes(kernel, axes)
    how = {
        "kernel": size,
        "stride": _axes(stride, axes) if stride else size,
        "padding": _axes(padding, axes) * 2,
        "dilation": _axes(dilation, axes),
        "ceil_mode": ceil_mode,
    }
    return _batched(x, axes), how


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool_with_indices(
    call: Call, x: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    whole, how = _largest(call, x, *args, **kwargs)
    positions = 1
    for size in whole.shape[2:]:
        positions *= size
    out, at = max_pool(whole, **how), max_pool_indices(whole, **how)
    plane = remainder(at, operand(positions, at.dtype))  # PyTorch counts in each channel
    if whole is x:
        return out, plane
    return reshape(out, out.shape[1:]), reshape(plane, plane.shape[1:])


@rule("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def max_pool_backward(call: Call, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    whole, how = _largest(call, x, *args[:-1])  # the last one holds indices
    out = max_pool(whole, **how)
    (found,) = vjp([out], [reshape(grad, out.shape)], [x])
    return found


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default")
def adaptive_pool(call: Call, x: Tensor, sizes: Ints) -> Tensor:
    axes = len(sizes)
    out = adaptive_average_pool(_batched(x, axes), tuple(sizes))
    return out if x.rank == axes + 2 else reshape(out, out.shape[1:])


@rule("_adaptive_avg_pool2d_backward.default")
def adaptive_pool_backward(call: Call, grad: Tensor, x: Tensor) -> Tensor:
    (out,) = vjp([adaptive_pool(call, x, grad.shape[-2:])], [grad], [x])
    return out


def _resized_axes(
    x: Tensor, sizes: Ints | None, factors: Factors
) -> list[tuple[int, int, int, float | None]]:
    """Return axis, old size, new size and factor of each axis whose size changes. The factor is
    that of PyTorch's coordinates; it may differ from the ratio of the sizes.
    """
    old = x.shape[2:]
    whole = factors or [None] * len(old)
    if sizes is None:
        sizes = [n if f is None else int(n * f) for n, f in zip(old, whole, strict=True)]
    described = zip(range(2, x.rank), old, sizes, whole, strict=True)
    return [each for each in described if each[1] != each[2]]


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def upsample_nearest(call: Call, x: Tensor, sizes: Ints | None, factors: Factors) -> Tensor:
    for axis, old, new, factor in _resized_axes(x, sizes, factors):
        step = np.float32(1 / factor) if factor else np.float32(old) / np.float32(new)
        at = np.floor(np.arange(new, dtype=np.float32) * step)
        x = gather(x, constant(np.minimum(at, old - 1).astype(np.int32)), axis)
    return x


@rule("upsample_bilinear2d.vec", "upsample_linear1d.vec", "upsample_trilinear3d.vec")
def upsample_linear(
    call: Call, x: Tensor, sizes: Ints | None, align_corners: bool, factors: Factors
) -> Tensor:
    for axis, old, new, factor in _resized_axes(x, sizes, factors):
        if align_corners:
            x = resize(x, [new], None, [axis], "linear", "align_corners")
        elif factor and factor * old != new:
            call.require(int(factor * old) == new, "with sizes that do not fit the factors")
            x = resize(x, None, [factor], [axis], "linear", "half_pixel")
        else:
            x = resize(x, [new], None, [axis], "linear", "half_pixel")
    return x


@rule("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest_default(
    call: Call,
    x: Tensor,
    sizes: Ints,
    scales_a: float | None = None,
    scales_b: float | None = None,
    scales_c: float | None = None,
) -> Tensor:
    return upsample_nearest(call, x, sizes, (scales_a, scales_b, scales_c)[: x.rank - 2])


@rule("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def upsample_linear_default(
    call: Call,
    x: Tensor,
    sizes: Ints,
    align_corners: bool,
    scales_a: float | None = None,
    scales_b: float | None = None,
    scales_c: float | None = None,
) -> Tensor:
    scales = (scales_a, scales_b, scales_c)[: x.rank - 2]
    return upsample_linear(call, x, sizes, align_corners, scales)


@rule("upsample_nearest2d_backward.default")
def upsample_nearest_backward(
    call: Call, grad: Tensor, sizes: Ints, input_size: Ints, *scales: float | None
) -> Tensor:
    x = full(tuple(input_size), 0, grad.dtype)
    (out,) = vjp([upsample_nearest(call, x, sizes, scales)], [grad], [x])
    return out


@rule("upsample_bilinear2d_backward.default")
def upsample_bilinear_backward(
    call: Call,
    grad: Tensor,
    sizes: Ints,
    input_size: Ints,
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    x = full(tuple(input_size), 0, grad.dtype)
    (out,) = vjp([upsample_linear(call, x, sizes, align_corners, scales)], [grad], [x])
    return out


@rule("grid_sampler_2d.default")
def grid_sampler(
    call: Call, x: Tensor, grid: Tensor, mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    return grid_sample(x, grid, GRID_MODES[mode], GRID_PADDING[padding_mode], align_corners)
