"""Convolutions and pools as loops of native programs (native/cpu_kernels/conv/).

They are split by images and channels; a convolution includes its epilogue. Examples:
tests/ops/native/test_native_programs.py.
"""

from __future__ import annotations

import math

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import SHARES
from ...ir.native_program import Loop, NativeProgram, NativeProgramRule
from ..elementwise.epilogue import program_of
from ..elementwise.fused_elementwise import loop_steps
from ..lowering import native_kernels
from ..lowering.fused_loop import encode_steps
from .conv_cpu import CHANNELS, counts_of
from .conv_direct import conv_window
from .pool_reference import pool_window
from .window import Window, three

PIECE = 1 << 19
"""Minimum multiply-adds of a piece, about 20 us."""
DEPTHWISE_CHANNELS = 16
"""Maximum depthwise channels that the loops compute together."""
DEPTHWISE_COST = 4
"""Cost factor of a multiply-add in depthwise convolutions, which read a channel of x for one
channel of results.
"""
SPAN = 192
"""Minimum positions of a span."""
PLANES = 1 << 15
"""Minimum values of x that a piece of a pool reads."""


def conv_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the loop of a convolution with its epilogue, or None if unsupported."""
    x, w = inputs[:2]
    if not native_kernels.conv_epilogue_ops() or any(t.dtype != FLOAT32 for t in inputs):
        return None
    found = program_of(attrs)
    epilogue = ((), ()) if found is None else loop_steps((output,) * found[0], found[1])
    if epilogue is None:
        return None
    groups, (images, channels) = attrs.as_int("groups"), output.shape[:2]
    operands = 1 if found is None else found[0]
    work = output.size * math.prod(w.shape[1:])
    if w.shape[1] == 1:
        work *= DEPTHWISE_COST
    each, spans = _channels(channels, groups, work // images), 1
    window = conv_window(inputs[:2], attrs)
    # a single channel is read in longer vectors
    if window.pointwise and groups == 1 and channels > 1:
        spans = _spans(math.prod(output.shape[2:]), work // images)
        each = channels if spans > 1 else each
    has_bias = len(inputs) - operands - 1
    steps, float_params = encode_steps(operands, *epilogue)
    sizes = (images, w.shape[1], channels // groups, groups, each, spans, has_bias)
    numbers = (*sizes, *_window_params(window, output), *steps)
    pieces = images * math.ceil(channels / each) * spans
    loop = Loop("conv", tuple(range(len(inputs))), output.size, numbers, float_params, pieces, work)
    return NativeProgram((loop,))


def conv_transpose_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the loop of a transposed convolution, or None if unsupported."""
    x, w, *bias = inputs
    if not native_kernels.conv_epilogue_ops() or any(t.dtype != FLOAT32 for t in inputs):
        return None
    groups, (images, channels) = attrs.as_int("groups"), output.shape[:2]
    work = x.size * math.prod(w.shape[1:])
    each = math.ceil(channels / max(1, min(work // images // PIECE, SHARES)))
    steps = (attrs.as_ints(name) for name in ("stride", "dilation", "begin", "end"))
    window = _window_params(Window(x.shape[2:], w.shape[2:], *steps), output)
    numbers = (images, w.shape[0] // groups, w.shape[1], groups, each, len(bias), *window)
    pieces = images * math.ceil(channels / each)
    operands = tuple(range(len(inputs)))
    return NativeProgram(
        (Loop("conv_transpose", operands, output.size, numbers, (), pieces, work),)
    )


def _channels(channels: int, groups: int, work: int) -> int:
    """Return the channels of a piece of an image: whole groups if there are several.

    A single group has few pieces, because each one reads all of x.
    """
    unit = channels // groups if groups > 1 else CHANNELS
    if unit == 1:
        unit = DEPTHWISE_CHANNELS
    pieces = max(1, min(work // PIECE, SHARES))
    units = math.ceil(channels / unit)
    return math.ceil(units / pieces) * unit


def _spans(places: int, work: int) -> int:
    """Return the number of spans of the positions of 1 x 1 windows; each reads its own part of x.

    It is 1 if channels should be split instead, because spans would be short.
    """
    pieces = max(1, min(work // PIECE, SHARES))
    return pieces if places >= pieces * SPAN else 1


def _window_params(window: Window, output: TensorType) -> tuple[int, ...]:
    """Encode a window over three axes as parameters of the native loops."""
    axes = (window.sizes, window.kernel, output.shape[2:], window.stride, window.dilation)
    return tuple(n for values in axes for n in three(values, 1)) + three(window.begin, 0)


def pool_program(kind: str) -> NativeProgramRule:
    """Return the native program rule of a pool; `kind` is "max" or "mean"."""

    def native_program(
        inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
    ) -> NativeProgram | None:
        (x,) = inputs
        if not native_kernels.conv_epilogue_ops() or x.dtype != FLOAT32:
            return None
        planes, work = x.shape[0] * x.shape[1], max(x.size, output.size)
        counts = counts_of(kind, x.shape[2:], attrs)
        missing = 3 - len(counts) if counts else 0
        float_params = (1.0,) * missing + tuple(n for along in counts for n in along)
        numbers = (
            planes,
            int(kind == "mean"),
            *_window_params(pool_window(x.shape, attrs), output),
        )
        pieces = max(1, min(work // PLANES, planes, SHARES))
        return NativeProgram(
            (Loop("pool", (0,), output.size, numbers, float_params, pieces, work),)
        )

    return native_program
