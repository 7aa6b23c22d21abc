"""Convolutions of 8-bit integers with exact int32 sums, as ONNX ConvInteger.

    x (N, C, spatial), prepacked w, zero points of x and of w (per tensor or per channel)
        -> the convolution of x - x_zero, which is 0 outside of x, and w - w_zero

Values of x are stored as int32; only their lowest 8 bits count. The words of w are those of a
matrix of taps * C' rows, where C' is C rounded up to a multiple of four: a window reads four
channels of a position at once. Device kernels: int8_matmul_kernels.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from ...common.dtypes import INT32, NDArray, Shape, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Flag, Int
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel, Piece
from ...ir.op import Call, Op, Work, register
from ...ir.sharding_rule import REPLICATE, Factor, Sharded, sharding
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import no_gradient
from ..linalg.int8_matmul import PIECE_PRODUCTS, check_zeros, subtract_zero_point, wrapped
from ..linalg.int8_matmul_kernels import Im2Col, integer_kernel
from ..linalg.int8_weights import PER_WORD, TILE, check_words, depth_of, unpack_int8
from ..lowering import native_kernels
from .conv import reference_of
from .window import (
    STEPS,
    WINDOW,
    Padding,
    PerAxis,
    Window,
    check_rank,
    dilation_of,
    paddings,
    per_axis,
    stepping,
    three,
)


def rows_of(channels: int, taps: int) -> int:
    """Return the rows of the weight matrix: channels in vec4s, tap by tap."""
    return taps * depth_of(channels) * PER_WORD


def as_matrix(w: NDArray) -> NDArray:
    """Return weights (C_out, C, kernel...) as the matrix whose words `conv_integer` reads."""
    outputs, channels = w.shape[:2]
    taps = math.prod(w.shape[2:])
    padded: NDArray = np.zeros((taps, depth_of(channels) * PER_WORD, outputs), w.dtype)
    padded[:, :channels] = w.reshape(outputs, channels, taps).transpose(2, 1, 0)
    return padded.reshape(-1, outputs)


def _window(x: Shape, attrs: Attrs) -> Window:
    steps = (attrs.as_ints(name) for name in ("kernel", "stride", "dilation", "begin", "end"))
    return Window(x[2:], *steps)


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, words, *zeros = inputs
    channels = attrs.as_int("channels")
    if x.dtype != INT32:
        raise DTypeError(
            f"[conv_integer] expected quantized values as int32, got {x.dtype}; try vs.cast"
        )
    check_rank("conv_integer", x.shape)
    window = _window(x.shape, attrs)
    if words.rank != 3:
        raise ShapeError(f"[conv_integer] expected words of one matrix, got {words.shape}")
    check_words("conv_integer", words, rows_of(x.shape[1], window.taps), channels)
    check_zeros("conv_integer", tuple(zeros), channels)
    counts = window.output("conv_integer", math.prod(x.shape[:2]))
    return TensorType((x.shape[0], channels, *counts), INT32)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Convolve in float64, whose sums are exact."""
    x, words, x_zero, w_zero = inputs
    window, columns = _window(x.shape, attrs), words.shape[0] * TILE
    int8_values = unpack_int8(words, rows_of(x.shape[1], window.taps), columns)
    by_tap = int8_values.reshape(window.taps, -1, columns)[:, : x.shape[1]]
    w = by_tap.transpose(2, 1, 0)[: _columns(words, attrs)].astype(np.float64)
    w -= w_zero.reshape(-1, 1, 1)
    w = w.reshape(*w.shape[:2], *window.kernel)
    return wrapped(reference_of(subtract_zero_point(x, x_zero, attrs), w, window, 1))


def _columns(words: NDArray, attrs: Attrs) -> int:
    """Return the channels of the result, or of a piece of it."""
    wide: int = words.shape[0] * TILE
    return min(attrs.as_int("channels"), wide)


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    x, words, x_zero, w_zero = inputs
    window = _window(x.shape, attrs)
    places = math.prod(window.counts())
    window_fields = (window.sizes, window.kernel, window.stride, window.dilation, window.begin)
    numbers = (
        *(three(v, 0 if v is window.begin else 1) for v in window_fields),
        three(window.counts()),
    )
    for image, out_image in zip(x, out, strict=True):
        lines = image.reshape(image.shape[0], math.prod(image.shape[1:]))
        target = out_image.reshape(out_image.shape[0], places)
        done = native_kernels.int8_conv(
            lines, words, int(x_zero.reshape(())), w_zero, target, numbers, attrs.as_bool("signed")
        )
        if not done:
            out_image[...] = _reference((image[None], *inputs[1:]), attrs)[0, : out_image.shape[0]]


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by images and tiles of channels."""
    x, words, x_zero, w_zero = inputs
    tiles = words.shape[0]
    products = math.prod(out.shape[2:]) * tiles * TILE * words.shape[1] * PER_WORD
    pieces = min(tiles, max(1, products // PIECE_PRODUCTS))
    step = -(-tiles // pieces)
    for image in range(x.shape[0]):
        at = slice(image, image + 1)
        for start in range(0, tiles, step):
            channels = slice(start * TILE, (start + step) * TILE)
            own = w_zero if w_zero.size == 1 else w_zero.reshape(-1)[channels]
            yield (x[at], words[start : start + step], x_zero, own), out[at, channels]


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    steps = inputs[0].shape[1] * math.prod(attrs.as_ints("kernel"))
    return Work(2.0 * steps * output.size, float(moved))


def _unfolded(call: Call) -> Im2Col:
    x, out = call.inputs[0], call.output
    window = _window(x.shape, call.attrs)
    sizes, places = math.prod(x.shape[2:]), math.prod(out.shape[2:])
    return Im2Col(
        images=x.shape[0],
        sizes=three(window.sizes),
        counts=three(window.counts()),
        steps=(1, sizes, x.shape[1] * sizes),
        channels=x.shape[1],
        columns=out.shape[1],
        result_steps=(1, places, out.shape[1] * places),
        kernel=three(window.kernel),
        stride=three(window.stride),
        dilation=three(window.dilation),
        begin=three(window.begin, 0),
    )


register(
    Op(
        "conv_integer",
        _infer,
        _reference,
        integer_kernel(_unfolded),
        attrs={**WINDOW, "kernel": STEPS, "channels": Int(0), "signed": Flag()},
        operands=(4, 4),
        work=_work,
        any_dtype=True,
        cpu=CpuKernel(_cpu, _cut),
    )
)
no_gradient("is of integers", "conv_integer")


@sharding("conv_integer")
def _sharding(call: Sharded) -> Iterable[Factor]:
    yield Factor((0, REPLICATE, REPLICATE, REPLICATE), 0, call.inputs[0].shape[0])


def conv_integer(
    x: Tensor,
    words: Tensor,
    channels: int,
    kernel: tuple[int, ...],
    x_zero: TensorLike = 0,
    w_zero: TensorLike = 0,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    signed: bool = False,
    name: str | None = None,
) -> Tensor:
    """Convolve int8 values x - x_zero and w - w_zero, exact modulo 2**32, as ONNX ConvInteger.

    Parameters
    ----------
    x : Tensor
        int8 values stored as int32 (N, C, spatial...): -128 .. 127 if `signed`, else 0 .. 255.
    words : Tensor
        `vs.prepack_int8` of the weights as a matrix with `channels` columns. Its rows are the taps
        in order, each with C rows padded to a multiple of four.
    channels : int
        Channels of the result.
    kernel : tuple of int
        Shape of the window.
    x_zero, w_zero : Tensor
        Zero points, as in `vs.matmul_integer`.
    stride, padding, dilation
        As in `vs.conv`.
    signed : bool
        Whether the values of x are signed.

    Returns
    -------
    Tensor
        int32 (N, channels, spatial...).
    """
    axes, sizes = check_rank("conv_integer", x.shape), x.shape[2:]
    steps = per_axis("conv_integer", "stride", stride, axes)
    dilations = dilation_of("conv_integer", dilation, kernel)
    begin, end = paddings("conv_integer", padding, sizes, kernel, steps, dilations)
    window = stepping(Window(sizes, kernel, steps, dilations, begin, end))
    attrs: dict[str, AttrValue] = {
        "channels": channels,
        "kernel": tuple(kernel),
        "stride": window.stride,
        "dilation": dilations,
        "begin": begin,
        "end": end,
        "signed": signed,
    }
    zeros = (as_tensor(zero, like=x) for zero in (x_zero, w_zero))
    return apply("conv_integer", (x, words, *zeros), attrs, name)
