"""Convolution and transposed convolution over one to three spatial axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...common.dtypes import FLOAT32, INT32, NDArray, Shape, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Int
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import Call, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..elementwise import add, mul
from ..elementwise.epilogue import with_epilogue
from ..layout.reshape import reshape
from ..reduction.reduce import reduce_sum
from .conv_cpu import conv_cpu_kernel, groups_of
from .conv_direct import conv_window, transpose_window
from .conv_kernels import (
    CONV_SHADERS,
    MIN_ROWS,
    conv_rounds,
    conv_scratch,
    conv_variants,
    lower_conv,
)
from .conv_native import conv_program, conv_transpose_program
from .conv_transpose_kernels import (
    TRANSPOSE_SHADERS,
    lower_transpose,
    transpose_rounds,
    transpose_scratch,
)
from .window import (
    PADDING,
    WINDOW,
    Padding,
    PerAxis,
    Window,
    check_rank,
    dilation_of,
    extent,
    halves,
    paddings,
    per_axis,
    stepping,
)

_LONG_SUM, _MAX_PRODUCTS = 1 << 16, 1 << 28
"""A convolution whose window covers all of x and is longer than the first value becomes a
reduction, unless it has more products than the second.
"""
_CHUNK_VALUES = 1 << 24
"""Maximum values of the unfolded input (im2col) that the reference holds at a time."""


def _check(op: str, inputs: tuple[TensorType, ...], groups: int, transposed: bool) -> int:
    """Check the operands and return the channels of the result."""
    x, w = inputs[:2]
    if x.dtype not in (FLOAT32, INT32) or any(t.dtype != x.dtype for t in inputs):
        raise DTypeError(
            f"[{op}] expected operands all float32 or all int32, "
            f"got {' and '.join(t.dtype for t in inputs)}; try vs.cast"
        )
    check_rank(op, x.shape)
    if w.rank != x.rank or 0 in w.shape[2:]:
        raise ShapeError(
            f"[{op}] expected w with two axes of channels and {x.rank - 2} of at least one step "
            f"each, got {w.shape}"
        )
    channels = w.shape[0] if transposed else w.shape[1] * groups
    if x.shape[1] != channels:
        raise ShapeError(
            f"[{op}] expected w {w.shape} in {groups} groups to take the channels of x, "
            f"got {channels} and {x.shape[1]}; try another groups"
        )
    if w.shape[0] % groups:
        raise ShapeError(f"[{op}] expected {groups} groups to divide w's first axis, got {w.shape}")
    results = w.shape[1] * groups if transposed else w.shape[0]
    if len(inputs) > 2 and inputs[2].shape != (results,):
        raise ShapeError(f"[{op}] expected a bias of shape ({results},), got {inputs[2].shape}")
    return results


def _work(call: Call, values: int, rounds: int) -> Work:
    """Estimate the work: each value meets the weights of its channel.

    `values` is the size of the result, or of x for a transposed convolution.
    """
    moved = sum(t.device_bytes for t in call.inputs) + call.output.device_bytes
    return Work(2.0 * values * math.prod(call.inputs[1].shape[1:]), float(moved), float(rounds))


def _conv_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    call = Call(inputs, output, attrs)
    return _work(call, output.size, conv_rounds(call))


def _transpose_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    call = Call(inputs, output, attrs)
    return _work(call, inputs[0].size, transpose_rounds(call))


# -- convolution -------------------------------------------------------------------------------


def _conv_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    channels = _check("conv", inputs, attrs.as_int("groups"), False)
    x = inputs[0]
    sizes = conv_window(inputs, attrs).output("conv", math.prod(x.shape[:2]))
    return TensorType((x.shape[0], channels, *sizes), x.dtype)


def _conv_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    window = conv_window(tuple(TensorType(a.shape) for a in inputs), attrs)
    x, w = inputs[:2]
    out = reference_of(x, w, window, groups_of(x, w, attrs))
    if len(inputs) > 2:
        out += inputs[2].reshape(-1, *(1,) * len(window.sizes))
    return out


def reference_of(x: NDArray, w: NDArray, window: Window, groups: int) -> NDArray:
    """Multiply the windows of each image, as a matrix, by the weights."""
    sizes, axes = window.counts(), len(window.sizes)
    out = np.empty((x.shape[0], w.shape[0], *sizes), x.dtype)
    if out.size == 0:
        return out
    padded = np.pad(x, ((0, 0), (0, 0), *zip(window.begin, window.end, strict=True)))
    spatial = tuple(range(2, 2 + axes))
    windows = sliding_window_view(padded, window.extent, spatial)
    places = tuple(slice(None, None, s) for s in window.stride)
    taps = tuple(slice(None, None, d) for d in window.dilation)
    steps_of_axes = (slice(None), slice(None), *places, *taps)
    windows = windows[steps_of_axes]
    # (images, channels, positions..., taps...) -> (images, channels, taps..., positions...)
    order = (0, 1, *range(2 + axes, 2 + 2 * axes), *spatial)
    columns = windows.transpose(order)
    steps = math.prod(w.shape[1:])
    weights = w.reshape(groups, w.shape[0] // groups, steps)
    for image, lines in _chunks(out.shape, groups * steps):
        whole = (slice(None),) * (1 + axes)
        place = (image, *whole, lines)
        part = columns[place]
        matrix = part.reshape(groups, steps, math.prod(part.shape[1 + axes :]))
        done = np.matmul(weights, matrix)
        target = (image, slice(None), lines)
        out[target] = done.reshape(w.shape[0], *part.shape[1 + axes :])
    return out


def _chunks(shape: Shape, steps: int) -> Iterator[tuple[int, slice]]:
    """Yield an image and a slice of its first spatial axis, to limit the size of a chunk."""
    per_line = max(1, steps * math.prod(shape[3:]))
    lines = max(1, _CHUNK_VALUES // per_line)
    for image in range(shape[0]):
        for first in range(0, shape[2], lines):
            yield image, slice(first, first + lines)


_CONV = Op(
    "conv",
    _conv_infer,
    _conv_reference,
    Kernel(CONV_SHADERS, lower_conv, conv_scratch, variants=conv_variants),
    attrs={**WINDOW, "groups": Int(1)},
    operands=(2, 3),
    work=_conv_work,
    roundable_operands=(0, 1),
    cpu=conv_cpu_kernel(_conv_reference),
)
register(
    replace(with_epilogue(_CONV), native_program=conv_program)
)  # the native loop computes the epilogue too


# -- transposed convolution --------------------------------------------------------------------


def _transpose_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    op = "conv_transpose"
    channels = _check(op, inputs, attrs.as_int("groups"), True)
    window = transpose_window(inputs, attrs)
    sizes = window.sizes
    if min(sizes) < 0 or 0 in inputs[0].shape[2:]:
        raise ShapeError(
            f"[{op}] expected a padding that leaves a result, got {attrs.as_ints('begin')} and "
            f"{attrs.as_ints('end')} for x {inputs[0].shape} and w {inputs[1].shape}"
        )
    window.check(op)
    return TensorType((inputs[0].shape[0], channels, *sizes), inputs[0].dtype)


def _transpose_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Compute the contributions of x to all windows as products, then accumulate them (col2im)."""
    x, w = inputs[:2]
    types = tuple(TensorType(a.shape) for a in inputs)
    window, groups = transpose_window(types, attrs), attrs.as_int("groups")
    axes, channels = len(window.sizes), w.shape[1] * groups
    out = np.empty((x.shape[0], channels, *window.sizes), x.dtype)
    padded = tuple(
        first + size + max(last, 0)
        for first, size, last in zip(window.begin, window.sizes, window.end, strict=True)
    )
    each = w.shape[0] // groups
    weights = w.reshape(groups, each, math.prod(w.shape[1:])).swapaxes(1, 2)
    for image in range(x.shape[0]):
        values = x[image].reshape(groups, each, math.prod(x.shape[2:]))
        parts = np.matmul(weights, values).reshape(channels, *w.shape[2:], *x.shape[2:])
        total = np.zeros((channels, *padded), x.dtype)
        for tap in product(*map(range, w.shape[2:])):
            starts = (t * d for t, d in zip(tap, window.dilation, strict=True))
            places = (
                slice(start, start + (size - 1) * stride + 1, stride)
                for start, size, stride in zip(starts, x.shape[2:], window.stride, strict=True)
            )
            target, source = (slice(None), *places), (slice(None), *tap)
            total[target] += parts[source]
        inner = (slice(b, b + s) for b, s in zip(window.begin, window.sizes, strict=True))
        result = (slice(None), *inner)
        out[image] = total[result]
    if len(inputs) > 2:
        out += inputs[2].reshape(-1, *(1,) * axes)
    return out


register(
    Op(
        "conv_transpose",
        _transpose_infer,
        _transpose_reference,
        Kernel(TRANSPOSE_SHADERS, lower_transpose, transpose_scratch),
        attrs={**WINDOW, "groups": Int(1), "output_padding": PADDING},
        operands=(2, 3),
        work=_transpose_work,
        roundable_operands=(0, 1),
        native_program=conv_transpose_program,
    )
)


# -- builders ----------------------------------------------------------------------------------


def conv(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    name: str | None = None,
) -> Tensor:
    """Convolve over one to three spatial axes, as ONNX Conv.

    The types are float32, and int32, which wraps.

    Parameters
    ----------
    x : Tensor
        (N, C, spatial...).
    w : Tensor
        (C_out, C / groups, kernel...).
    bias : Tensor, optional
        (C_out,).
    stride, dilation : int or sequence of int
        One value, or one per axis.
    padding : int, sequence of int or str
        Zeros added: one value, one per axis, all begins and then all ends, or "valid",
        "same_upper", "same_lower".
    groups : int
        Number of channel groups with separate weights.

    Returns
    -------
    Tensor
        (N, C_out, spatial...).
    """
    operands, axes = _operands("conv", x, w, bias, groups)
    sizes, kernel = operands[0].shape[2:], operands[1].shape[2:]
    steps = per_axis("conv", "stride", stride, axes)
    dilations = dilation_of("conv", dilation, kernel)
    begin, end = paddings("conv", padding, sizes, kernel, steps, dilations)
    window = stepping(Window(sizes, kernel, steps, dilations, begin, end))
    attrs: dict[str, AttrValue] = {
        "stride": window.stride,
        "dilation": dilations,
        "begin": begin,
        "end": end,
        "groups": int(groups),
    }
    result = apply("conv", operands, attrs, name)
    if _is_one_long_sum(result, operands[1], window, int(groups)):
        return _as_reduction(result, operands, int(groups), name)
    return result


def _is_one_long_sum(result: Tensor, w: Tensor, window: Window, groups: int) -> bool:
    """Return True if a single, long window covers all of x: too few invocations would sum it."""
    same = window.kernel == window.sizes and not any((*window.begin, *window.end))
    steps = math.prod(w.shape[1:])
    long = steps > _LONG_SUM and result.size * steps <= _MAX_PRODUCTS
    return same and long and 0 < w.shape[0] // groups < MIN_ROWS


def _as_reduction(
    result: Tensor, operands: tuple[Tensor, ...], groups: int, name: str | None
) -> Tensor:
    """Multiply x and w elementwise, then reduce the products with many invocations."""
    x, w, *bias = operands
    images, channels = result.shape[:2]
    rows, steps = channels // groups, math.prod(w.shape[1:])
    products = mul(reshape(x, (images, groups, 1, steps)), reshape(w, (1, groups, rows, steps)))
    sums = reduce_sum(products, 3)
    if bias:
        sums = add(sums, reshape(bias[0], (groups, rows)))
    return reshape(sums, result.shape, name=name)


def conv_transpose(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    name: str | None = None,
) -> Tensor:
    """Compute a transposed convolution, as ONNX ConvTranspose.

    The types are float32, and int32, which wraps.

    Parameters
    ----------
    x : Tensor
        (N, C, spatial...).
    w : Tensor
        (C, C_out / groups, kernel...).
    bias : Tensor, optional
        (C_out,).
    stride, dilation : int or sequence of int
        One value, or one per axis.
    padding : int, sequence of int or str
        As in `conv`. "same_upper" and "same_lower" result in sizes size * stride.
    output_padding : int or sequence of int
        Positions added at the end of each axis of the result.
    groups : int
        Number of channel groups with separate weights.

    Returns
    -------
    Tensor
        (N, C_out, spatial...). Each size is (size - 1) * stride + (kernel - 1) * dilation + 1 +
        output_padding - padding.
    """
    op = "conv_transpose"
    operands, axes = _operands(op, x, w, bias, groups)
    sizes, kernel = operands[0].shape[2:], operands[1].shape[2:]
    steps = per_axis(op, "stride", stride, axes)
    dilations = dilation_of(op, dilation, kernel)
    extra = per_axis(op, "output_padding", output_padding, axes, 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, dilations, strict=True)):
        raise ShapeError(
            f"[{op}] expected output_padding less than stride or dilation, got {extra}, {steps} "
            f"and {dilations}"
        )
    if isinstance(padding, str):
        reaches = extent(kernel, dilations)
        totals = tuple(r + e - s for r, e, s in zip(reaches, extra, steps, strict=True))
        begin, end = halves(op, padding, tuple(max(t, 0) for t in totals))
        # a window shorter than its stride leaves positions that no window reaches
        if padding != "valid":
            extra = tuple(e + max(-t, 0) for e, t in zip(extra, totals, strict=True))
    else:
        begin, end = paddings(op, padding, sizes, kernel, steps, dilations)
    attrs: dict[str, AttrValue] = {
        "stride": tuple(s if n > 1 else 1 for s, n in zip(steps, sizes, strict=True)),
        "dilation": dilations,
        "begin": begin,
        "end": end,
        "groups": int(groups),
        "output_padding": extra,
    }
    return apply(op, operands, attrs, name)


def _operands(
    op: str, x: TensorLike, w: TensorLike, bias: TensorLike | None, groups: int
) -> tuple[tuple[Tensor, ...], int]:
    """Return the operands, whose ranks were checked, and the number of spatial axes."""
    tensor = as_tensor(x)
    weights = as_tensor(w, like=tensor)
    axes = check_rank(op, tensor.shape)
    if weights.rank != tensor.rank:
        raise ShapeError(f"[{op}] expected w of the rank of x, {tensor.rank}, got {weights.type}")
    if not isinstance(groups, (int, np.integer)) or groups < 1:
        raise ShapeError(f"[{op}] expected groups of 1 or more, got {groups!r}")
    rest = () if bias is None else (as_tensor(bias, like=tensor),)
    return (tensor, weights, *rest), axes
