"""The weight gradient of a depthwise convolution: few sums, over all images and positions.

    x (N, G, sizes), g (N, G * R, counts) -> parts (N * parts, G * R, kernel) -> (G * R, 1, kernel)

Many invocations share each sum: a part is some lines of an image. Parts are added in a fixed order,
so results are reproducible. Examples: tests/ops/test_ops.py.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, Shape, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, apply
from ..layout.strided_copy import FILLS, fill_words
from ..linalg.split_k import SPLIT_K_SHADERS, add_parts
from ..lowering.strides import LOOP_STEPS
from .window import STEPS, WINDOW, Window, launches, three

OP = "depthwise_conv_weight_grad"
_BLOCK = 4
"""Adjacent taps along the window's last axis of one invocation (depthwise_conv_weight_grad.comp).
"""
_INVOCATIONS = 1 << 12
"""Number of invocations from which images are not split further."""


def window_of(inputs: tuple[TensorType, ...], attrs: Attrs) -> Window:
    """Return the window of the weights over x."""
    names = ("kernel", "stride", "dilation", "begin", "end")
    return Window(inputs[0].shape[2:], *(attrs.as_ints(name) for name in names))


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, g = inputs
    if x.dtype != FLOAT32 or g.dtype != x.dtype:
        raise DTypeError(f"[{OP}] expected float32, got {x.dtype} and {g.dtype}; try vs.cast")
    if g.rank != x.rank:
        raise ShapeError(f"[{OP}] expected g of rank {x.rank}, as x, got {g.shape}")
    counts = window_of(inputs, attrs).output(OP, math.prod(x.shape[:2]))
    channels = x.shape[1]
    if not channels or g.shape[1] % channels or g.shape != (x.shape[0], g.shape[1], *counts):
        raise ShapeError(
            f"[{OP}] expected g of shape ({x.shape[0]}, a multiple of {channels}, "
            f"{', '.join(map(str, counts))}), got {g.shape}"
        )
    return TensorType((g.shape[1], 1, *attrs.as_ints("kernel")), x.dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """For each tap, sum the products of g and the values of x that the tap reads."""
    x, g = inputs
    window = window_of(tuple(TensorType(a.shape) for a in inputs), attrs)
    counts, channels = g.shape[2:], x.shape[1]
    padded = np.pad(x, ((0, 0), (0, 0), *zip(window.begin, window.end, strict=True)))
    split = g.reshape(g.shape[0], channels, g.shape[1] // channels, math.prod(counts))
    out = np.empty((channels, split.shape[2], window.taps), x.dtype)
    for number, tap in enumerate(product(*map(range, window.kernel))):
        places = tuple(
            slice(t * d, t * d + (count - 1) * stride + 1, stride)
            for t, d, count, stride in zip(tap, window.dilation, counts, window.stride, strict=True)
        )
        everywhere = (slice(None), slice(None), *places)
        met = padded[everywhere].reshape(*split.shape[:2], split.shape[3], 1)
        out[:, :, number] = np.matmul(split, met)[..., 0].sum(0)
    return out.reshape(g.shape[1], 1, *window.kernel)


def _lines(call: Call) -> tuple[int, int]:
    """Return the parts of each image, and the lines of results of a part."""
    images, rows, *counts = call.inputs[1].shape
    kernel, lines = three(call.output.shape[2:]), math.prod(counts[:-1])
    items = images * rows * kernel[0] * kernel[1] * -(-kernel[2] // _BLOCK)
    each = -(-lines * items // _INVOCATIONS)
    if call.limits.software:
        each = min(each, LOOP_STEPS // 4 // (counts[-1] + 1))
    each = max(1, min(lines, each))
    return -(-lines // each), each


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    x, g = call.inputs
    if g.size == 0:
        return (fill_words(OUTPUT, call.output.size, 0, call.limits),)
    window, (parts, lines) = window_of(call.inputs, call.attrs), _lines(call)
    kernel, all_parts = three(window.kernel), x.shape[0] * parts
    items = all_parts * g.shape[1] * kernel[0] * kernel[1] * -(-kernel[2] // _BLOCK)
    push = (
        *window.push(),
        *(("x_sizes", three(window.sizes)), ("counts", three(g.shape[2:]))),
        *(("rows", g.shape[1] // x.shape[1]), ("all_rows", g.shape[1])),
        *(("parts", parts), ("lines", lines)),
    )
    slides = (("SLIDES", int(window.stride[-1] == window.dilation[-1])),)
    target = OUTPUT if all_parts == 1 else SCRATCH
    sums = tuple(
        Dispatch(
            *(OP, (0, 1, target), launch.groups, (*push, *launch.push), slides),
            barrier=launch.barrier,
        )
        for launch in launches(OP, items, lines * (g.shape[-1] + 1), call.limits)
    )
    return (
        sums
        if all_parts == 1
        else (*sums, *add_parts(OP, SCRATCH, all_parts, call.output.size, call.limits))
    )


def _scratch(call: Call) -> tuple[int, ...]:
    some = call.output.size and call.inputs[1].size
    parts = call.inputs[0].shape[0] * _lines(call)[0] if some else 0
    return (parts * call.output.size,) if parts > 1 else ()


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    x, g = inputs
    moved = x.device_bytes + g.device_bytes + output.device_bytes
    return Work(2.0 * g.size * math.prod(output.shape[2:]), float(moved), float(g.shape[-1]))


register(
    Op(
        OP,
        _infer,
        _reference,
        Kernel((OP, *SPLIT_K_SHADERS, *FILLS), _lower, _scratch),
        attrs={**WINDOW, "kernel": STEPS},
        operands=(2, 2),
        work=_work,
        roundable_operands=(0, 1),
    )
)


def depthwise_conv_weight_grad(x: Tensor, g: Tensor, window: Window, padding: Shape) -> Tensor:
    """Return the gradient of the weights of a depthwise convolution: (G * R, 1, kernel).

    x is (N, G, sizes); g, the gradient of the result, is (N, G * R, counts). `padding` holds the
    zeros before all axes of x, then those behind them, so that the last window ends with x.
    """
    axes = len(window.kernel)
    attrs: dict[str, AttrValue] = {
        "kernel": window.kernel,
        "stride": window.stride,
        "dilation": window.dilation,
        "begin": padding[:axes],
        "end": padding[axes:],
    }
    return apply(OP, (x, g), attrs)
