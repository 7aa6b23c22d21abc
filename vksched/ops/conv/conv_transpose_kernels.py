"""Kernel selection of transposed convolutions: a matrix product with col2im, or direct sums.

    w^T times x --matmul--> scratch (N, rows * taps, positions of x) --col2im--> result + bias

Results one stride apart use the same taps of a window, at adjacent positions of x. Kernels compute
four of these results at once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...common.dtypes import Shape, TensorType
from ...common.errors import UnsupportedOp
from ...ir.op import SCRATCH, Call, Dispatch
from ..linalg import matmul
from ..linalg.operands import product_attrs
from ..lowering.strides import MAX_DISPATCHES
from .conv_direct import (
    BLOCK,
    conv_constants,
    conv_operands,
    depthwise,
    direct,
    sum_of,
    transpose_window,
)
from .conv_kernels import MIN_ROWS, SCRATCH_WORDS, SOFTWARE_SCRATCH_WORDS
from .window import Window, launches, three

_MIN_CHANNELS = 16
"""Minimum channels of a group for which the matrix product pays."""


def _reach(window: Window) -> tuple[tuple[str, int], ...]:
    """Return the constants of shaders/conv/window_range.glsl."""
    every = (s // math.gcd(s, d) for s, d in zip(window.stride, window.dilation, strict=True))
    named = {"STRIDE": window.stride, "DILATION": window.dilation, "EVERY": tuple(every)}
    return tuple(
        (f"{name}_{axis}", value)
        for name, values in named.items()
        for axis, value in zip("ZYX", three(values), strict=True)
    )


def _transpose_images(call: Call) -> int:
    """Return the images whose w^T x fits into scratch memory; 0: sum the results directly."""
    parts, limits = sum_of(call), call.limits
    rows = parts.rows * parts.taps
    if parts.channels < _MIN_CHANNELS or rows < MIN_ROWS:
        return 0
    words = parts.groups * rows * math.prod(call.inputs[0].shape[2:])
    if words * 4 > limits.max_buffer_bytes // 2:
        return 0
    room = SOFTWARE_SCRATCH_WORDS if limits.software else SCRATCH_WORDS
    return max(1, min(call.output.shape[0], room // words))


def _count_blocks(shape: Shape, window: Window) -> int:
    """Return the number of blocks of results, each one stride apart along the last axis."""
    stride = window.stride[-1]
    return math.prod(shape[:-1]) * stride * -(-shape[-1] // (BLOCK * stride))


def _by_col2im(call: Call, window: Window) -> tuple[Dispatch, ...]:
    """Compute w^T x as one product, then accumulate overlapping windows (col2im)."""
    parts, most, dtype = sum_of(call), _transpose_images(call), call.output.dtype
    total, channels, *sizes = call.inputs[0].shape
    volume, rows = math.prod(sizes), parts.rows * parts.taps
    results = math.prod(call.output.shape[1:])
    items = _count_blocks(call.output.shape[1:], window)
    push = (
        *(("kernel", three(window.kernel)), ("begin", three(window.begin, 0))),
        *(("x_sizes", three(sizes)), ("result_sizes", three(call.output.shape[2:]))),
        ("rows", parts.groups * parts.rows),
    )
    out: list[Dispatch] = []
    for image in range(0, total, most):
        images = min(most, total - image)
        w = TensorType((1, parts.groups, parts.channels, rows), dtype)
        x = TensorType((images, parts.groups, parts.channels, volume), dtype)
        columns = TensorType((images, parts.groups, rows, volume), dtype)
        attrs = product_attrs(call, True, False)
        # wait until the previous values have been read, and the next ones written
        for number, step in enumerate(matmul.product(Call((w, x), columns, attrs, call.limits))):
            at_w, at_x, *rest = step.shifts
            shifts = (at_w, at_x + image * channels * volume, *rest)
            barrier = step.barrier or (number == 0 and image > 0)
            operands = (1, 0, 1, SCRATCH)
            out.append(replace(step, operands=operands, shifts=shifts, barrier=barrier))
        out += (
            Dispatch(
                f"col2im_{dtype}",
                (SCRATCH, *conv_operands(call)[2:]),
                launch.groups,
                (*push, *launch.push),
                (*conv_constants(call), *_reach(window)),
                shifts=(0, 0, image * results),
                barrier=True,
            )
            for launch in launches(
                "conv_transpose", images * items, window.rounds(BLOCK), call.limits
            )
        )
    if len(out) > MAX_DISPATCHES:
        raise UnsupportedOp(f"[conv_transpose] it needs more than {MAX_DISPATCHES} dispatches")
    return tuple(out)


def lower_transpose(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a transposed convolution."""
    if call.output.size == 0:
        return ()
    window = transpose_window(call.inputs, call.attrs)
    if _transpose_images(call):
        return _by_col2im(call, window)
    if sum_of(call).channels == 1 and sum_of(call).rows < BLOCK:
        items, rounds = _count_blocks(call.output.shape, window), window.rounds(BLOCK)
        shader = "conv_transpose_depthwise"
        return depthwise(shader, call, window, items, rounds, _reach(window))
    return direct("conv_transpose", call, window, _reach(window))


def transpose_rounds(call: Call) -> int:
    """Return the loop iterations of an invocation that accumulates one result."""
    if call.output.size == 0:
        return 0
    parts = sum_of(call)
    return parts.taps if _transpose_images(call) else parts.steps


def transpose_scratch(call: Call) -> tuple[int, ...]:
    """Return the words of w^T x that a transposed convolution holds at a time."""
    images = _transpose_images(call) if call.output.size else 0
    parts = sum_of(call)
    words = images * parts.groups * parts.rows * parts.taps * math.prod(call.inputs[0].shape[2:])
    return (words,) if words else ()


TRANSPOSE_SHADERS = (
    *(
        f"{kind}_{dtype}"
        for kind in ("conv_transpose", "conv_transpose_depthwise", "col2im")
        for dtype in ("float32", "int32")
    ),
    *matmul.SHADERS,
)
