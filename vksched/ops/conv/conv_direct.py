"""Direct convolution kernels, and the description of a convolution that all kernels use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch
from ..lowering.strides import LOOP_STEPS
from .window import Push, Window, extent, launches, three

BLOCK = 4
"""Rows of a group, or neighbors along the last axis, of one invocation (shaders/conv/conv*)."""


def conv_window(inputs: tuple[TensorType, ...], attrs: Attrs) -> Window:
    """Return the window that a convolution's weights form over its input."""
    x, w = inputs[:2]
    steps = (attrs.as_ints(name) for name in ("stride", "dilation", "begin", "end"))
    return Window(x.shape[2:], w.shape[2:], *steps)


def transpose_window(inputs: tuple[TensorType, ...], attrs: Attrs) -> Window:
    """Return the window that a transposed convolution's input forms over its result.

    Its end includes the output padding, so it may be negative.
    """
    x, w = inputs[:2]
    stride, dilation, begin, end, extra = (
        attrs.as_ints(name) for name in ("stride", "dilation", "begin", "end", "output_padding")
    )
    end = tuple(e - more for e, more in zip(end, extra, strict=True))
    reach = extent(w.shape[2:], dilation)
    sizes = (
        (n - 1) * s + r - b - e
        for n, s, r, b, e in zip(x.shape[2:], stride, reach, begin, end, strict=True)
    )
    return Window(tuple(sizes), w.shape[2:], stride, dilation, begin, end)


@dataclass(frozen=True, slots=True)
class ConvSum:
    """The sums of one group of a convolution: rows of results, over channels and taps."""

    groups: int
    rows: int
    channels: int
    taps: int
    places: int

    @property
    def steps(self) -> int:
        return self.channels * self.taps


def sum_of(call: Call) -> ConvSum:
    groups = call.attrs.as_int("groups")
    x, w, out = call.inputs[0].shape, call.inputs[1].shape, call.output.shape
    taps, places = math.prod(w[2:]), math.prod(out[2:])
    return ConvSum(groups, out[1] // groups, x[1] // groups, taps, places)


def conv_constants(call: Call, first: bool = True) -> tuple[tuple[str, int], ...]:
    return (("HAS_BIAS", int(len(call.inputs) > 2 and first)),)


def conv_operands(call: Call) -> tuple[int, ...]:
    return (0, 1, 2 if len(call.inputs) > 2 else 0, OUTPUT)


def push_of(call: Call, window: Window) -> Push:
    parts = sum_of(call)
    return (
        *window.push(),
        ("x_sizes", three(call.inputs[0].shape[2:])),
        ("result_sizes", three(call.output.shape[2:])),
        ("images", call.output.shape[0]),
        *(("conv_groups", parts.groups), ("channels", parts.channels), ("rows", parts.rows)),
    )


def direct(
    shader: str, call: Call, window: Window, reach: tuple[tuple[str, int], ...] = ()
) -> tuple[Dispatch, ...]:
    """Return dispatches in which an invocation sums four rows of a group, or the only row.

    Channels are divided among dispatches if the loop limit of a CPU driver requires it.
    """
    parts, limits = sum_of(call), call.limits
    one_row = parts.rows == 1
    blocks = -(-parts.rows // (1 if one_row else BLOCK))
    items = call.output.shape[0] * parts.groups * blocks * parts.places
    most = parts.channels
    if limits.software:
        most = max(1, min(most, (LOOP_STEPS - 2 * window.rounds()) // parts.taps))
    push = push_of(call, window)
    starts = range(0, max(parts.channels, 1), max(most, 1))
    return tuple(
        Dispatch(
            f"{shader}_{call.output.dtype}",
            conv_operands(call),
            launch.groups,
            (*push, *launch.push, ("start", start), ("end", min(start + most, parts.channels))),
            (
                *conv_constants(call, start == 0),
                *(("ADDS", int(start > 0)), ("ONE_ROW", int(one_row))),
                *reach,
            ),
            barrier=launch.barrier or start > 0,
            partial=start + most < parts.channels,
        )
        for start in starts
        for launch in launches(shader, items, window.rounds(most), limits)
    )


def depthwise(
    shader: str,
    call: Call,
    window: Window,
    items: int,
    rounds: int,
    constants: tuple[tuple[str, int], ...],
) -> tuple[Dispatch, ...]:
    """Return dispatches in which an invocation computes four results along the last axis of a row.

    `rounds` is the number of its loop iterations.
    """
    push = (*push_of(call, window), ("start", 0), ("end", 1))
    return tuple(
        Dispatch(
            f"{shader}_{call.output.dtype}",
            conv_operands(call),
            launch.groups,
            (*push, *launch.push),
            (*conv_constants(call), *constants),
            barrier=launch.barrier,
        )
        for launch in launches(shader.removesuffix("_depthwise"), items, rounds, call.limits)
    )


def conv_depthwise(call: Call, window: Window) -> tuple[Dispatch, ...]:
    sizes = three(call.output.shape[2:])
    items = call.output.size // sizes[2] * -(-sizes[2] // BLOCK)
    slides = (("SLIDES", int(window.stride[-1] == window.dilation[-1])),)
    return depthwise("conv_depthwise", call, window, items, window.rounds(), slides)


def is_3x3(call: Call, window: Window) -> bool:
    """Return True if `conv_depthwise_3x3`, the kernel for mobile networks, supports the call."""
    return (
        call.output.dtype == FLOAT32
        and window.kernel == (3, 3)
        and set(window.dilation) == {1}
        and window.stride in ((1, 1), (2, 2))
    )


def conv_depthwise_3x3(call: Call, window: Window) -> tuple[Dispatch, ...]:
    parts, (images, _, *sizes) = sum_of(call), call.output.shape
    stride = window.stride[0]
    lines, columns = 4 // stride, 4
    items = images * parts.groups * parts.rows * -(-sizes[0] // lines) * -(-sizes[1] // columns)
    push = (
        *(("sizes", window.sizes), ("result_sizes", (sizes[0], sizes[1])), ("begin", window.begin)),
        *(("rows", parts.groups * parts.rows), ("rows_per_channel", parts.rows)),
    )
    constants = (
        *conv_constants(call),
        ("X_IN_VEC4", int(window.sizes[1] % 4 == 0 and window.begin[1] == 1)),
        ("RESULT_IN_VEC4", int(sizes[1] % 4 == 0)),
    )
    return tuple(
        Dispatch(
            f"conv_depthwise_3x3_{stride}",
            conv_operands(call),
            launch.groups,
            (*push, *launch.push),
            constants,
            barrier=launch.barrier,
        )
        for launch in launches("conv", items, 4, call.limits)
    )
