"""Rules for quantized ops of com.microsoft: dequantize, compute in float32, quantize."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onnx import TensorProto

from ..... import ops
from .....common.dtypes import FLOAT32
from .....ir.tensor import Tensor
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ...nodes.values import Value
from ..integer import (
    byte_product,
    integer_product,
    per_row,
    qlinear_conv,
    rows,
    zero_point,
)
from ..narrow_types import NUMBERS, cast
from ..pool import averages
from ..quantize import (
    centred,
    factor,
    parameter,
    quantize_dynamically,
    quantized,
    real,
    saturated,
    zero_of,
)
from ..registry import rule
from ..window import either_layout

T = TensorProto
quantised = partial(rule, types=NUMBERS, domain=MICROSOFT)

quantised("QLinearConv")(either_layout(qlinear_conv))


def _real(n: NodeContext, index: int) -> Tensor:
    """Return a dequantized operand; its scale and zero point are the next operands."""
    return real(n, index, index + 2, parameter(n, index + 1, FLOAT32))


def _result(n: NodeContext, x: Tensor, index: int, elem_type: int) -> Value:
    """Quantize floats with the scale and zero point at an index and the next."""
    return quantized(x, parameter(n, index, FLOAT32), zero_point(n, index + 1), elem_type)


def _shifted_result(n: NodeContext, x: Tensor, index: int) -> Value:
    """Quantize as `_result`, but round after adding the zero point: ties differ if it is odd."""
    zero, quotient = zero_of(n, index + 1), x / parameter(n, index, FLOAT32)
    return saturated(quotient if zero is None else quotient + zero, None, n.elem_type(0))


# -- elementwise -------------------------------------------------------------------------------


def _of_two(build: Callable[[Tensor, Tensor], Tensor]) -> Callable[[NodeContext], Value]:
    return lambda n: _result(n, build(_real(n, 0), _real(n, 3)), 6, n.elem_type(0))


def _of_one(build: Callable[[NodeContext, Tensor], Tensor]) -> Callable[[NodeContext], Value]:
    return lambda n: _result(n, build(n, _real(n, 0)), 3, n.elem_type(0))


@quantised("QLinearAdd")
def qlinear_add(n: NodeContext) -> Value:
    return _shifted_result(n, _real(n, 0) + _real(n, 3), 6)


quantised("QLinearMul")(_of_two(ops.mul))
quantised("QLinearSigmoid")(_of_one(lambda n, x: ops.sigmoid(x)))
quantised("QLinearLeakyRelu")(_of_one(lambda n, x: ops.leaky_relu(x, n.attr("alpha", 0.01))))


@quantised("QLinearWhere")
def qlinear_where(n: NodeContext) -> Value:
    chosen = ops.where(n.tensor(0), _real(n, 1), _real(n, 4))
    return _result(n, chosen, 7, n.elem_type(1))


# -- along axes --------------------------------------------------------------------------------


def _softmax(n: NodeContext, x: Tensor) -> Tensor:
    """Before opset 13: softmax over an axis and all after it."""
    axis = n.attr("axis", -1)
    if n.attr("opset", 13) >= 13:
        return ops.softmax(x, axis)
    axis += x.rank if axis < 0 else 0
    leading = x.shape[:axis]
    return ops.softmax(x.reshape((*leading, -1)), -1).reshape(x.shape)


quantised("QLinearSoftmax")(_of_one(_softmax))


@quantised("QLinearGlobalAveragePool")
@either_layout
def qlinear_global_average_pool(n: NodeContext) -> Value:
    return _shifted_result(n, ops.global_average_pool(_real(n, 0)), 3)


@quantised("QLinearAveragePool")
@either_layout
def qlinear_average_pool(n: NodeContext) -> Value:
    return _shifted_result(n, averages(n, _real(n, 0)), 3)


@quantised("QLinearConcat")
def qlinear_concat(n: NodeContext) -> Value:
    """Operands: scale and zero point of the result, then three per input."""
    parts = [_real(n, i) for i in range(2, len(n.inputs), 3)]
    return _result(n, ops.concat(parts, n.attr("axis")), 0, n.elem_type(1))


# -- products ----------------------------------------------------------------------------------


@quantised("QGemm")
def qgemm(n: NodeContext) -> Value:
    """Return alpha * a @ b + c; c is int32 with the product's scale. The result is float32 without
    operand 7.
    """
    is_transposed = bool(n.attr("transB", 0))
    if n.attr("transA", 0):
        a, b = centred(n, 0, 2), centred(n, 3, 5, rows(n, 5) if is_transposed else None)
        sums = ops.matmul(a, b, transpose_a=True, transpose_b=is_transposed)
    else:
        sums = integer_product(n, 0, 2, 3, 5, transpose_b=is_transposed)
    if n.has(6):
        sums = sums + n.tensor(6)
    scale = factor(n, 1, 4, None, n.shape(1), n.shape(4)) * float(n.attr("alpha", 1.0))
    out = cast(sums, FLOAT32) * scale
    return _result(n, out, 7, n.elem_type(0)) if n.has(7) else Value(T.FLOAT, tensor=out)


@quantised("MatMulIntegerToFloat")
def matmul_integer_to_float(n: NodeContext) -> Value:
    """Operands: a, b, their scales, their zero points, and a bias."""
    product = cast(integer_product(n, 0, 4, 1, 5), FLOAT32)
    out = product * factor(n, 2, 3, None, per_row(n, 2), n.shape(3))
    return Value(T.FLOAT, tensor=out + n.tensor(6) if n.has(6) else out)


@quantised("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(n: NodeContext) -> Value:
    """Operands: a in float32, b as integers, its scale, its zero point, and a bias."""
    a, scale, zero = quantize_dynamically(n.tensor(0))
    by_zero = byte_product(n, a, T.UINT8, 1, 3)
    sums = by_zero(zero) if by_zero else ops.matmul(a - zero, centred(n, 1, 3))
    out = cast(sums, FLOAT32) * (scale * parameter(n, 2, FLOAT32))
    return Value(T.FLOAT, tensor=out + n.tensor(4) if n.has(4) else out)
