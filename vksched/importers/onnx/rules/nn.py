"""Rules for convolutions."""

from __future__ import annotations

import numpy as np

from ....common.dtypes import numpy_dtype
from ....ir.tensor import Tensor, constant
from ....ops import (
    concat,
    conv,
    conv_transpose,
    pad,
    reshape,
    silu,
    slice,
    transpose,
    unsqueeze,
)
from ....ops.conv.window import Padding
from ..nodes.elements import ANY
from ..nodes.node import NodeContext
from ..nodes.schemas import MICROSOFT
from .registry import rule
from .window import ints, padding, spatial_axes


def convolution(n: NodeContext, weights: Tensor | None = None) -> Tensor:
    """Return the convolution of operands 0 and 1, with operand 2 as bias; `weights` replace operand
    1.
    """
    axes = spatial_axes(n)
    return conv(
        n.tensor(0),
        n.tensor(1) if weights is None else weights,
        n.optional(2),
        stride=ints(n, "strides", axes),
        padding=padding(n, axes),
        dilation=ints(n, "dilations", axes),
        groups=n.attr("group", 1),
    )


@rule("Conv", rounds=True)
def conv_rule(n: NodeContext) -> Tensor:
    return convolution(n)


@rule("ConvTranspose", rounds=True)
def conv_transpose_rule(n: NodeContext) -> Tensor:
    return transposed_convolution(n, None, n.optional(2))


def transposed_convolution(
    n: NodeContext, pads: tuple[int, ...] | None, bias: Tensor | None
) -> Tensor:
    """Return the transposed convolution of operands 0 and 1; `pads` replace the attribute."""
    axes = spatial_axes(n)
    x, w = n.tensor(0), n.tensor(1)
    strides, dilations = ints(n, "strides", axes), ints(n, "dilations", axes)
    pads_used: Padding = padding(n, axes) if pads is None else pads
    extra = ints(n, "output_padding", axes, 0)
    same = n.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    target = tuple(n.attr("output_shape", ()))[-axes:]
    beyond = (0,) * axes
    if target or same:
        wanted = target or tuple(size * s for size, s in zip(x.shape[2:], strides, strict=True))
        totals = [
            (size - 1) * s + (k - 1) * d + 1 + more - out
            for size, s, k, d, more, out in zip(
                x.shape[2:], strides, w.shape[2:], dilations, extra, wanted, strict=True
            )
        ]
        half = [max(t, 0) // 2 for t in totals]
        rest = [max(t, 0) - h for t, h in zip(totals, half, strict=True)]
        upper = n.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        pads_used = (*half, *rest) if upper else (*rest, *half)
        if target:  # without output_shape, the result ends at the last weight, as in onnxruntime
            beyond = tuple(max(-t, 0) for t in totals)
    result = conv_transpose(
        x,
        w,
        bias if not any(beyond) else None,
        stride=strides,
        padding=pads_used,
        output_padding=extra,
        dilation=dilations,
        groups=n.attr("group", 1),
    )
    if any(beyond):  # positions that no weight reaches
        result = pad(result, [(0, 0)] * 2 + [(0, more) for more in beyond])
        if bias is not None:
            result = result + reshape(bias, (-1, *(1,) * axes))
    return result


@rule("Col2Im", types=ANY)
def col2im(n: NodeContext) -> Tensor:
    """Compute Col2Im as a transposed convolution with one-hot weights."""
    x, image, block = n.tensor(0), n.ints(1), n.ints(2)
    axes = len(image)
    n.require(1 <= axes <= 3, f"{axes} spatial axes")
    strides, dilations = ints(n, "strides", axes), ints(n, "dilations", axes)
    pads = ints(n, "pads", 2 * axes, 0)
    places, rest = [], []
    for i in range(axes):
        room = image[i] + pads[i] + pads[axes + i] - (block[i] - 1) * dilations[i] - 1
        places.append(room // strides[i] + 1)
        rest.append(room % strides[i])
    taps = int(np.prod(block))
    batch, channels = x.shape[0], x.shape[1] // taps
    n.require_room((taps, taps), x.dtype)
    w = np.eye(taps, dtype=numpy_dtype(x.dtype)).reshape(taps, 1, *block)
    result = conv_transpose(
        reshape(x, (batch * channels, taps, *places)),
        constant(w),
        stride=strides,
        padding=pads,
        output_padding=rest,
        dilation=dilations,
    )
    return reshape(result, (batch, channels, *image))


@rule("CausalConvWithState", rounds=True)
@rule("CausalConvWithState", domain=MICROSOFT)
def causal_conv(n: NodeContext) -> tuple[Tensor, Tensor]:
    """Compute a depthwise convolution that continues the past of the last call; channels-last
    inputs may have several spatial axes.
    """
    n.require(n.attr("ndim", 1) == 1, f"{n.attr('ndim', 1)} spatial axes")
    several = n.attr("state_window", 0) or n.attr("state_update_capacity", 0)
    n.require(not several, "states of several steps")
    for name in ("input_channels", "input_channel_offset", "state_length"):
        n.require(not n.attr(name, 0), name)
    x, before = n.tensor(0), n.optional(3)
    if not n.attr("channels_last", 0):
        return causal_convolution(n, x, before, n.optional(2))
    channels = x.shape[2:]

    def first(t: Tensor) -> Tensor:
        return transpose(reshape(t, (*t.shape[:2], -1)), (0, 2, 1))

    pads_used = None if before is None else first(before)
    parts = causal_convolution(n, first(x), pads_used, n.optional(2))
    y, state = (transpose(t, (0, 2, 1)) for t in parts)
    return reshape(y, x.shape), reshape(state, (*state.shape[:2], *channels))


def causal_convolution(
    n: NodeContext, x: Tensor, before: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the causal convolution of x (batch, channels, length) with operand 1, and the new
    past.

    Parameters
    ----------
    before
        The past of the previous call, or None.
    """
    w, dilation = n.tensor(1), n.attr("dilation", 1)
    batch, channels, _ = x.shape
    reach = (w.shape[-1] - 1) * dilation
    if before is None:
        n.require_room((batch, channels, reach), x.dtype)
        before = constant(np.zeros((batch, channels, reach), numpy_dtype(x.dtype)))
    whole = concat([before, x], 2)
    result = conv(whole, w, bias, groups=channels, dilation=dilation)
    kind = n.attr("activation", "none")
    n.require(kind in ("none", "silu", "swish"), f"the activation {kind}")
    state = slice(whole, whole.shape[2] - reach, whole.shape[2], 2)
    return result if kind == "none" else silu(result), state


@rule("VarlenCausalConvWithState", domain=MICROSOFT)
def causal_conv_of_sequences(n: NodeContext) -> tuple[Tensor, Tensor]:
    """Operands: rows of all sequences (rows, channels), weights, cumulative sequence lengths, a
    bias, and the past of each sequence.
    """
    n.require(not n.has(5) and not n.has(6) and not n.wants(2), "states of several steps")
    x, ends, before = n.tensor(0), n.ints(2), n.tensor(4)
    result, states = [], []
    for at, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        rows = unsqueeze(transpose(slice(x, start, end, 0), (1, 0)), 0)
        y, state = causal_convolution(n, rows, slice(before, at, at + 1, 0), n.optional(3))
        result.append(transpose(y[0], (1, 0)))
        states.append(state)
    return concat(result, 0), concat(states, 0)
