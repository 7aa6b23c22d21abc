"""Rules for integer matmul and convolution. 8-bit ones use packed int8 dot products.

    quantized values, packed weights -> matmul_integer, conv_integer -> int32 -> requantize ->
    quantized values

Known weights are packed into 32-bit words once (ops/linalg/int8_weights.py). Wider integers, zero
points per row of a, and grouped convolutions are computed with int32 ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from .... import ops
from ....common.dtypes import FLOAT32, NDArray, Shape
from ....ir.graph import INLINE_BYTES
from ....ir.tensor import Tensor, constant
from ....ops.conv.conv_int8 import as_matrix
from ....ops.linalg.int8_weights import SHIFT, as_signed, pack_int8
from ..nodes.elements import element_name, to_storage
from ..nodes.node import NodeContext
from ..nodes.values import Value, known
from .narrow_types import NUMBERS, cast, is_float, limits
from .quantize import centred, factor, flat, saturated, shaped, zero_of
from .registry import rule
from .window import ints, padding, spatial_axes

T = TensorProto
BYTES = (T.INT8, T.UINT8)

# -- operands ----------------------------------------------------------------------------------


def per_row(n: NodeContext, index: int) -> Shape:
    """Return the shape in which the scale or zero point of a's rows broadcasts with a."""
    shape = n.shape(index)
    return (*shape, 1) if len(shape) == 1 else shape


def per_channel(n: NodeContext, index: int, rank: int, axis: int) -> Shape:
    """Return the shape in which a value per result channel broadcasts, with channels at an axis."""
    shape = [1] * rank
    shape[axis] = int(np.prod(n.shape(index)))
    return tuple(shape)


def rows(n: NodeContext, index: int) -> Callable[[Any], Any] | None:
    """Return a function that reshapes a zero point of a's rows for broadcasting."""
    return (lambda value: shaped(value, per_row(n, index))) if n.has(index) else None


def channels(n: NodeContext, rank: int) -> Callable[[Any], Any]:
    """Return a function that reshapes a zero point per output channel to broadcast with the
    weights.
    """
    return lambda value: shaped(value, (math.prod(value.shape), *(1,) * (rank - 1)))


def zero_point(n: NodeContext, index: int, shift: int = 0) -> Tensor:
    """Return a zero point minus a shift as int32: a scalar, or a vector."""
    shape: Shape = () if not n.has(index) or math.prod(n.shape(index)) == 1 else (-1,)
    array = n.value(index).array if n.has(index) else np.zeros((), np.int32)
    if array is None or array.nbytes > INLINE_BYTES:
        operand = n.tensor(index).reshape(shape)
        return operand - shift if shift else operand
    return constant(to_storage(array).astype(np.int32).reshape(shape) - np.int32(shift))


def zero_of_weights(n: NodeContext, weight: int, index: int) -> Tensor:
    """Return the zero point of weights, shifted like packed weights."""
    return zero_point(n, index, SHIFT if n.elem_type(weight) == T.UINT8 else 0)


def _has_zeros(n: NodeContext, index: int, *sizes: int) -> bool:
    """Return True if a zero point is omitted, a scalar, or a vector with one of `sizes`."""
    if not n.has(index):
        return True
    shape = n.shape(index)
    return math.prod(shape) == 1 or (len(shape) == 1 and shape[0] in sizes)


def _words(n: NodeContext, index: int, as_rows: Callable[[NDArray], NDArray], kind: str) -> Tensor:
    """Return known weights packed into 32-bit words, cached for all lowerings of a model."""
    value, signed = n.value(index), n.elem_type(index) == T.INT8

    def make() -> list[Value | None]:
        assert value.array is not None
        return [known(pack_int8(as_rows(as_signed(value.array, signed))))]

    found = n.lowering.context.fold(f"words {kind}".encode(), [value], make)
    assert found is not None and found[0] is not None
    result = n.lowering.tensor(found[0])
    result.name = f"{n.node.input[index]}.words"
    return result


# -- products ----------------------------------------------------------------------------------


def integer_product(
    n: NodeContext, a: int, a_zero: int, b: int, b_zero: int, *, transpose_b: bool = False
) -> Tensor:
    """Return the product of two integer matrices minus their zero points, as int32.

    Parameters
    ----------
    transpose_b
        Transpose b.
    """
    int8_values = byte_product(n, n.tensor(a), n.elem_type(a), b, b_zero, transpose_b=transpose_b)
    if int8_values is not None and _has_zeros(n, a_zero):
        return int8_values(zero_point(n, a_zero))
    left = centred(n, a, a_zero, rows(n, a_zero))
    right = centred(n, b, b_zero, rows(n, b_zero) if transpose_b else None)
    return ops.matmul(left, right, transpose_b=transpose_b)


def byte_product(
    n: NodeContext, a: Tensor, elem_type: int, b: int, b_zero: int, *, transpose_b: bool = False
) -> Callable[[Tensor], Tensor] | None:
    """Return a function from a zero point to the product of int8 values, or None for other
    operands.
    """
    shape = n.shape(b)
    if elem_type not in BYTES or n.elem_type(b) not in BYTES or min(a.rank, len(shape)) < 2:
        return None
    columns = shape[-2] if transpose_b else shape[-1]
    if len(shape) > 2 and (shape[:-2] != a.shape[:-2] or transpose_b):
        return None
    if not _has_zeros(n, b_zero, columns):
        return None
    if n.value(b).array is not None:
        arrange: Callable[[NDArray], NDArray] = (lambda w: w.T) if transpose_b else (lambda w: w)
        words = _words(n, b, arrange, "transpose_b" if transpose_b else "")
    else:
        right = ops.transpose(n.tensor(b), (1, 0)) if transpose_b else n.tensor(b)
        words = ops.prepack_int8(right, signed=n.elem_type(b) == T.INT8)
    signed = elem_type == T.INT8
    of_b = zero_of_weights(n, b, b_zero)
    return lambda zero: ops.matmul_integer(a, words, columns, zero, of_b, signed=signed)


def _convolution(n: NodeContext, x: int, x_zero: int, w: int, w_zero: int) -> Tensor:
    """Return a convolution of integers minus their zero points, as int32."""
    axes, groups, shape = spatial_axes(n), n.attr("group", 1), n.shape(w)
    window: dict[str, Any] = {
        "stride": ints(n, "strides", axes),
        "padding": padding(n, axes),
        "dilation": ints(n, "dilations", axes),
    }
    types = n.elem_type(x) in BYTES and n.elem_type(w) in BYTES
    zeros = _has_zeros(n, x_zero) and _has_zeros(n, w_zero, shape[0])
    if types and zeros and groups == 1 and n.value(w).array is not None and 0 not in shape:
        words = _words(n, w, as_matrix, "of windows")
        zero_points = zero_point(n, x_zero), zero_of_weights(n, w, w_zero)
        signed = n.elem_type(x) == T.INT8
        int8_values, kernel = n.tensor(x), shape[2:]
        return ops.conv_integer(
            int8_values, words, shape[0], kernel, *zero_points, signed=signed, **window
        )
    weights = centred(n, w, w_zero, channels(n, len(shape)))
    return ops.conv(centred(n, x, x_zero), weights, groups=groups, **window)


@rule("MatMulInteger", types=NUMBERS)
def matmul_integer(n: NodeContext) -> Value:
    return Value(T.INT32, tensor=integer_product(n, 0, 2, 1, 3))


@rule("ConvInteger", types=NUMBERS)
def conv_integer(n: NodeContext) -> Value:
    return Value(T.INT32, tensor=_convolution(n, 0, 2, 1, 3))


# -- requantize --------------------------------------------------------------------------------


def _requantized(
    n: NodeContext, sums: Tensor, scale: Tensor, bias: Tensor | None, axis: int
) -> Value:
    """Quantize int32 sums with the zero point of operand 7.

    Parameters
    ----------
    axis
        Axis of scales and biases.
    """
    target = n.elem_type(7)
    zero = n.value(7).array
    along = scale.size == 1 or scale.size == scale.shape[axis] == sums.shape[axis]
    if zero is not None and zero.size == 1 and along:
        low, high = limits(target)
        shift = constant(np.int32(0)) if bias is None else bias
        number = int(to_storage(zero).reshape(()).item())
        result = ops.requantize(
            sums, flat(scale), shift, zero=number, low=low, high=high, axis=axis
        )
        return Value(target, tensor=result)
    if bias is not None:
        sums = sums + bias.reshape([-1 if a == axis else 1 for a in range(sums.rank)])
    return saturated(cast(sums, FLOAT32) * scale, zero_of(n, 7), target)


@rule("QLinearMatMul", types=NUMBERS)
def qlinear_matmul(n: NodeContext) -> Value:
    n.require(not is_float(n.elem_type(7)), element_name(n.elem_type(7)))
    sums = integer_product(n, 0, 2, 3, 5)
    scale = factor(n, 1, 4, 6, per_row(n, 1), n.shape(4))
    if scale.size > 1 and sums.rank > scale.rank:
        scale = scale.reshape((*(1,) * (sums.rank - scale.rank), *scale.shape))
    return _requantized(n, sums, scale, None, sums.rank - 1)


@rule("QLinearConv", types=NUMBERS)
def qlinear_conv(n: NodeContext) -> Value:
    sums = _convolution(n, 0, 2, 3, 5)
    scale = factor(n, 1, 4, 6, n.shape(1), per_channel(n, 4, len(n.shape(3)), 1))
    return _requantized(n, sums, scale, n.optional(8), 1)
