"""Rules for quantised models: integers are held as int32, of which sums and products are exact.

x = (q - zero point) * scale        q = saturate(round(x / scale) + zero point)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from onnx import TensorProto

from ... import ops
from ...ops.tensor import Tensor, constant
from ...types import FLOAT32, INT32, NDArray, Shape
from ..elements import NARROW_FLOATS, NARROW_INTS, element_name
from ..values import Value
from .narrow import NUMBERS, convert, fit, is_float, limits
from .registry import MICROSOFT, rule
from .window import ints, padding, spatial_axes

if TYPE_CHECKING:
    from ..node import NodeContext

T = TensorProto
Held = TypeVar("Held", Tensor, NDArray)

# -- parts -------------------------------------------------------------------------------------


def shaped(value: Held, shape: Shape) -> Held:
    """Returns a scale or zero point that broadcasts: of one element as a scalar."""
    return value.reshape(() if value.shape in ((), (1,)) else shape)


def centred(n: NodeContext, index: int, zero: int, shape: Shape | None = None) -> Tensor:
    """Returns an integer operand less its zero point. shape: of the zero point, to broadcast."""
    x = n.tensor(index)
    known = n.value(zero).array if n.has(zero) else np.zeros(())
    if known is not None and not known.any():
        return x
    return x - shaped(n.tensor(zero), n.shape(zero) if shape is None else shape)


def as_float(n: NodeContext, index: int, shape: Shape | None = None) -> Tensor | None:
    """Returns a scale or zero point as float32, or None where it is left out."""
    if not n.has(index):
        return None
    array, wanted = n.value(index).array, n.shape(index) if shape is None else shape
    if array is not None:
        return constant(shaped(array.astype(np.float32), wanted))
    return ops.cast(shaped(n.tensor(index), wanted), FLOAT32)


def factor(n: NodeContext, first: int, second: int, target: int | None, *shapes: Shape) -> Tensor:
    """Returns scale * scale, divided by that of the result, in their own type, as float32.

    shapes: of the first two, to broadcast.
    """
    indices = [first, second] if target is None else [first, second, target]
    wanted = [*shapes, ()]
    arrays = [n.value(i).array for i in indices]
    if all(a is not None for a in arrays):
        parts = [shaped(a, s) for a, s in zip(arrays, wanted, strict=False) if a is not None]
        made = parts[0] * parts[1]
        return constant(np.asarray(made if target is None else made / parts[2], np.float32))
    elem_type = n.elem_type(first)
    given = [shaped(n.tensor(i), s) for i, s in zip(indices, wanted, strict=False)]
    found = fit(given[0] * given[1], elem_type)
    if target is not None:
        found = fit(found / given[2], elem_type)
    return ops.cast(found, FLOAT32)


def saturated(x: Tensor, zero: Tensor | None, elem_type: int) -> Value:
    """Returns round(x) + zero, cut to the range of an integer type."""
    low, high = limits(elem_type)
    whole = ops.round(x) if zero is None else ops.round(x) + zero
    return Value(elem_type, tensor=ops.cast(ops.clip(whole, low, high), INT32))


# -- to integers and back ----------------------------------------------------------------------


def _along(n: NodeContext, index: int) -> Tensor:
    """Returns a scale or zero point as it broadcasts with operand 0: one for each position along an
    axis, or for each block of these.
    """
    value, shape = n.tensor(index), n.shape(0)
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    if block and value.rank == len(shape):
        axis %= value.rank
        each = ops.repeat(value, block, axis)
        return each if each.shape == shape else ops.slice(each, 0, shape[axis], axis)
    if value.size == 1:
        return value.reshape(())
    n.require(value.rank == 1 and -len(shape) <= axis < len(shape), "scales of another shape")
    wanted = [1] * len(shape)
    wanted[axis] = value.size
    return value.reshape(tuple(wanted))


@rule("QuantizeLinear", types=NUMBERS)
@rule("QuantizeLinear", types=NUMBERS, domain=MICROSOFT)
def quantize_linear(n: NodeContext) -> Value:
    """The division is one of the scales' type, unless `precision` names another."""
    target = n.elem_type(2) if n.has(2) else n.attr("output_dtype") or T.UINT8
    precision = n.attr("precision") or n.elem_type(1)
    x = convert(n.tensor(0), n.elem_type(0), precision)
    quotient = x / convert(_along(n, 1), n.elem_type(1), precision)
    scaled = ops.cast(fit(quotient, precision), FLOAT32)
    if target in NARROW_FLOATS:
        scaled = scaled + _along(n, 2) if n.has(2) else scaled
        made = convert(scaled, T.FLOAT, target, bool(n.attr("saturate", 1)))
        return Value(target, tensor=made)
    n.require(target in NARROW_INTS, f"{element_name(target)} as a result")
    return saturated(scaled, ops.cast(_along(n, 2), FLOAT32) if n.has(2) else None, target)


@rule("DequantizeLinear", types=NUMBERS)
@rule("DequantizeLinear", types=NUMBERS, domain=MICROSOFT)
def dequantize_linear(n: NodeContext) -> Value:
    target = n.attr("output_dtype") or n.elem_type(1)
    x = n.tensor(0)
    known = n.value(2).array if n.has(2) else np.zeros(())
    if known is None or known.astype(np.float32).any():
        x = x - _along(n, 2)
    scaled = ops.cast(x, FLOAT32) * ops.cast(_along(n, 1), FLOAT32)
    return Value(target, tensor=convert(scaled, T.FLOAT, target))


def quantize_dynamically(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns float32 as uint8, its scale, and its zero point, by its least and largest value."""
    least = ops.minimum(ops.reduce_min(x), 0.0)
    span = ops.maximum(ops.reduce_max(x), 0.0) - least
    scale = ops.where(span > 0, span, 1.0) / 255.0
    zero = ops.round(ops.clip(-least / scale, 0, 255))
    whole = ops.clip(ops.round(x / scale) + zero, 0, 255)
    return ops.cast(whole, INT32), scale, ops.cast(zero, INT32)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: NodeContext) -> list[Value]:
    types = (T.UINT8, T.FLOAT, T.UINT8)
    made = quantize_dynamically(n.tensor(0))
    return [Value(e, tensor=t) for e, t in zip(types, made, strict=True)]


# -- products ----------------------------------------------------------------------------------


def per_row(n: NodeContext, index: int) -> Shape:
    """Returns how the scale or zero point of a's rows broadcasts with a."""
    shape = n.shape(index)
    return (*shape, 1) if len(shape) == 1 else shape


def per_channel(n: NodeContext, index: int, rank: int, axis: int) -> Shape:
    """Returns how what is given for each result channel broadcasts, with channels at an axis."""
    shape = [1] * rank
    shape[axis] = int(np.prod(n.shape(index)))
    return tuple(shape)


def integer_product(n: NodeContext, a: int, a_zero: int, b: int, b_zero: int) -> Tensor:
    """Returns the product of two integer matrices, less their zero points, as int32."""
    rows = per_row(n, a_zero) if n.has(a_zero) else None
    return ops.matmul(centred(n, a, a_zero, rows), centred(n, b, b_zero))


def _convolution(n: NodeContext, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = spatial_axes(n)
    return ops.conv(
        x,
        w,
        bias,
        stride=ints(n, "strides", axes),
        padding=padding(n, axes),
        dilation=ints(n, "dilations", axes),
        groups=n.attr("group", 1),
    )


@rule("MatMulInteger", types=NUMBERS)
def matmul_integer(n: NodeContext) -> Value:
    return Value(T.INT32, tensor=integer_product(n, 0, 2, 1, 3))


@rule("ConvInteger", types=NUMBERS)
def conv_integer(n: NodeContext) -> Value:
    zero = per_channel(n, 3, len(n.shape(1)), 0) if n.has(3) else None
    return Value(T.INT32, tensor=_convolution(n, centred(n, 0, 2), centred(n, 1, 3, zero)))


@rule("QLinearMatMul", types=NUMBERS)
def qlinear_matmul(n: NodeContext) -> Value:
    n.require(not is_float(n.elem_type(7)), element_name(n.elem_type(7)))
    product = ops.cast(integer_product(n, 0, 2, 3, 5), FLOAT32)
    scale = factor(n, 1, 4, 6, per_row(n, 1), n.shape(4))
    return saturated(product * scale, as_float(n, 7), n.elem_type(7))


@rule("QLinearConv", types=NUMBERS)
def qlinear_conv(n: NodeContext) -> Value:
    n.require(not n.attr("channels_last", 0), "channels last")
    rank = len(n.shape(3))
    w = centred(n, 3, 5, per_channel(n, 5, rank, 0))
    sums = ops.cast(_convolution(n, centred(n, 0, 2), w, n.optional(8)), FLOAT32)
    scale = factor(n, 1, 4, 6, n.shape(1), per_channel(n, 4, rank, 1))
    return saturated(sums * scale, as_float(n, 7), n.elem_type(7))
