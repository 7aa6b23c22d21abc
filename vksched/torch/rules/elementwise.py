"""Rules for elementwise ops, with PyTorch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...ir.tensor import Tensor, apply, binary
from ...ops import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    cast,
    clip,
    div,
    equal,
    expm1,
    floor_divide,
    greater,
    greater_equal,
    isinf,
    isnan,
    leaky_relu,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mul,
    not_equal,
    reciprocal,
    rsqrt,
    sigmoid,
    softplus,
    sqrt,
    square,
    sub,
    trunc,
    where,
)
from ...ops import elu as vs_elu
from ...ops import gelu as vs_gelu
from ...ops import pow as vs_pow
from .registry import Call, operand, rule

UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf"),
    *("erfc", "exp", "expm1", "floor", "log", "log10", "log1p", "log2", "neg", "reciprocal"),
    *("relu", "round", "rsqrt", "sigmoid", "silu", "sin", "sinh", "sqrt", "tan", "tanh"),
    *("trunc", "mish"),
)
"""ATen ops whose name, with one operand, is that of a vksched op."""
COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "eq": equal,
    "ne": not_equal,
    "lt": less,
    "le": less_equal,
    "gt": greater,
    "ge": greater_equal,
}
LOGICAL: dict[str, Callable[..., Tensor]] = {
    "logical_and": logical_and,
    "logical_or": logical_or,
    "logical_xor": logical_xor,
}
BITWISE: dict[str, Callable[..., Tensor]] = {
    "bitwise_and": bitwise_and,
    "bitwise_or": bitwise_or,
    "bitwise_xor": bitwise_xor,
    "bitwise_left_shift": bitwise_left_shift,
    "bitwise_right_shift": bitwise_right_shift,
}
BINARY = ("maximum", "minimum", "atan2", "copysign", "hypot", "nextafter", "fmod", "remainder")
"""ATen ops whose name, with two operands, is that of a vksched op."""
ALL_BOOL: dict[str, Callable[..., Tensor]] = {
    "add": logical_or,
    "mul": logical_and,
    "maximum": logical_or,
    "minimum": logical_and,
}
"""Arithmetic of bools, which PyTorch defines as logic."""


def _unary(name: str) -> None:
    @rule(f"{name}.default")
    def build(call: Call, x: Tensor) -> Tensor:
        return apply(name, (operand(x, call.dtype),))


def _binary(name: str) -> None:
    @rule(f"{name}.default", f"{name}.Tensor", f"{name}.Scalar")
    def build(call: Call, a: Any, b: Any) -> Tensor:
        if call.dtype == "bool" and name in ALL_BOOL:
            return ALL_BOOL[name](operand(a, "bool"), operand(b, "bool"))
        return binary(name, operand(a, call.dtype), operand(b, call.dtype))


def _comparison(name: str, compare: Callable[..., Tensor]) -> None:
    @rule(f"{name}.Tensor", f"{name}.Scalar")
    def build(call: Call, a: Any, b: Any) -> Tensor:
        return compare(operand(a, call.promoted), operand(b, call.promoted))


def _logical(name: str, combine: Callable[..., Tensor]) -> None:
    @rule(f"{name}.default")
    def build(call: Call, a: Any, b: Any) -> Tensor:
        return combine(operand(a, "bool"), operand(b, "bool"))


def _bitwise(name: str, combine: Callable[..., Tensor]) -> None:
    @rule(f"{name}.Tensor", f"{name}.Scalar", f"{name}.Scalar_Tensor", f"{name}.Tensor_Scalar")
    def build(call: Call, a: Any, b: Any) -> Tensor:
        return combine(operand(a, call.dtype), operand(b, call.dtype))


@rule("__lshift__.Scalar", "__lshift__.Tensor")
def left_shift(call: Call, a: Tensor, b: Any) -> Tensor:
    return bitwise_left_shift(operand(a, call.dtype), operand(b, call.dtype))


@rule("__rshift__.Scalar", "__rshift__.Tensor")
def right_shift(call: Call, a: Tensor, b: Any) -> Tensor:
    return bitwise_right_shift(operand(a, call.dtype), operand(b, call.dtype))


for _name in UNARY:
    _unary(_name)
for _name in BINARY:
    _binary(_name)
for _name, _compare in COMPARISONS.items():
    _comparison(_name, _compare)
for _name, _combine in LOGICAL.items():
    _logical(_name, _combine)
for _name, _combine in BITWISE.items():
    _bitwise(_name, _combine)


@rule("alias.default", "clone.default", "detach.default", "lift_fresh_copy.default")
@rule("contiguous.default", "_conj.default", "positive.default")
def alias(call: Call, x: Tensor) -> Tensor:
    return operand(x, call.dtype)


@rule("_to_copy.default")
def to_copy(call: Call, x: Tensor, dtype: str | None = None, non_blocking: bool = False) -> Tensor:
    return operand(x, call.dtype)


@rule("prims::convert_element_type.default")
def convert_element_type(call: Call, x: Tensor, dtype: str) -> Tensor:
    return operand(x, call.dtype)


@rule("add.Tensor", "add.Scalar")
def add(call: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    if call.dtype == "bool":
        call.require(alpha == 1, "of bools with alpha")
        return logical_or(operand(a, "bool"), operand(b, "bool"))
    right = operand(b, call.dtype)
    return operand(a, call.dtype) + (right if alpha == 1 else right * operand(alpha, call.dtype))


@rule("sub.Tensor", "sub.Scalar")
def subtract(call: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    right = operand(b, call.dtype)
    return sub(operand(a, call.dtype), right if alpha == 1 else right * operand(alpha, call.dtype))


@rule("rsub.Tensor", "rsub.Scalar")
def rsub(call: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    return subtract(call, b, a, alpha)


@rule("mul.Tensor", "mul.Scalar")
def multiply(call: Call, a: Any, b: Any) -> Tensor:
    if call.dtype == "bool":
        return logical_and(operand(a, "bool"), operand(b, "bool"))
    return mul(operand(a, call.dtype), operand(b, call.dtype))


@rule("div.Tensor", "div.Scalar")
def true_divide(call: Call, a: Any, b: Any) -> Tensor:
    return div(operand(a, call.dtype), operand(b, call.dtype))


@rule("div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(call: Call, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    left, right = operand(a, call.dtype), operand(b, call.dtype)
    if rounding_mode == "floor":
        return floor_divide(left, right)
    quotient = div(left, right)
    return quotient if rounding_mode is None or call.dtype[0] == "i" else trunc(quotient)


@rule("floor_divide.default")
def floor_divide_rule(call: Call, a: Any, b: Any) -> Tensor:
    return floor_divide(operand(a, call.dtype), operand(b, call.dtype))


@rule("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(call: Call, a: Any, b: Any) -> Tensor:
    if isinstance(b, (int, float)) and call.dtype[0] == "f":
        x = operand(a, call.dtype)
        short = {1.0: lambda: x, 2.0: lambda: square(x), 0.5: lambda: sqrt(x)}
        short |= {-1.0: lambda: reciprocal(x), -0.5: lambda: rsqrt(x)}
        if float(b) in short:
            return short[float(b)]()
    return vs_pow(operand(a, call.dtype), operand(b, call.dtype))


@rule("remainder.Scalar_Tensor")
def remainder_of_number(call: Call, a: Any, b: Any) -> Tensor:
    return binary("remainder", operand(a, call.dtype), operand(b, call.dtype))


@rule("logical_not.default")
def logical_not_rule(call: Call, x: Tensor) -> Tensor:
    return logical_not(operand(x, "bool"))


@rule("bitwise_not.default")
def bitwise_not(call: Call, x: Tensor) -> Tensor:
    return bitwise_invert(x)


@rule("isinf.default")
def isinf_rule(call: Call, x: Tensor) -> Tensor:
    return isinf(x if x.dtype != "bool" else cast(x, "int32"))


@rule("isnan.default")
def isnan_rule(call: Call, x: Tensor) -> Tensor:
    return isnan(x if x.dtype != "bool" else cast(x, "int32"))


@rule("sign.default")
def sign(call: Call, x: Tensor) -> Tensor:
    out = apply("sign", (x,))
    return where(isnan(x), operand(0, x.dtype), out) if x.dtype[0] == "f" else out


@rule("exp2.default")
def exp2(call: Call, x: Tensor) -> Tensor:
    return vs_pow(operand(2.0, call.dtype), operand(x, call.dtype))


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where_rule(call: Call, condition: Tensor, a: Any, b: Any) -> Tensor:
    return where(operand(condition, "bool"), operand(a, call.dtype), operand(b, call.dtype))


@rule("clamp.default", "clamp.Tensor")
def clamp(call: Call, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    out = operand(x, call.dtype)
    numbers = not isinstance(min, Tensor) and not isinstance(max, Tensor)
    if (
        numbers
        and call.dtype[0] == "f"
        and not any(v is not None and math.isnan(v) for v in (min, max))
    ):
        return clip(out, *[None if v is None else operand(v, call.dtype) for v in (min, max)])
    if min is not None:
        out = maximum(out, operand(min, call.dtype))
    return out if max is None else minimum(out, operand(max, call.dtype))


@rule("clamp_min.default", "clamp_min.Tensor")
def clamp_min(call: Call, x: Tensor, min: Any) -> Tensor:
    return maximum(operand(x, call.dtype), operand(min, call.dtype))


@rule("clamp_max.default", "clamp_max.Tensor")
def clamp_max(call: Call, x: Tensor, max: Any) -> Tensor:
    return minimum(operand(x, call.dtype), operand(max, call.dtype))


@rule("hardtanh.default")
def hardtanh(call: Call, x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return clamp(call, x, min_val, max_val)


@rule("gelu.default")
def gelu(call: Call, x: Tensor, approximate: str = "none") -> Tensor:
    return vs_gelu(x, approximate)


@rule("elu.default")
def elu(
    call: Call, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Tensor:
    if alpha == 1 and input_scale == 1:
        out = vs_elu(x)
    else:
        scaled = x if input_scale == 1 else x * operand(input_scale, call.dtype)
        negative = expm1(scaled) * operand(alpha, call.dtype)
        out = where(x > operand(0, call.dtype), x, negative)
    return out if scale == 1 else out * operand(scale, call.dtype)


@rule("leaky_relu.default")
def leaky_relu_rule(call: Call, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return leaky_relu(x, negative_slope)


@rule("softplus.default")
def softplus_rule(call: Call, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = x * operand(beta, call.dtype)
    smooth = softplus(scaled) / operand(beta, call.dtype)
    return where(scaled > operand(threshold, call.dtype), x, smooth)


@rule("logit.default")
def logit(call: Call, x: Tensor, eps: float | None = None) -> Tensor:
    p = operand(x, call.dtype)
    if eps is not None:
        p = clip(p, operand(eps, call.dtype), operand(1 - eps, call.dtype))
    return log(p / (operand(1, call.dtype) - p))


@rule("sigmoid_backward.default")
def sigmoid_backward(call: Call, grad: Tensor, y: Tensor) -> Tensor:
    return grad * y * (operand(1, call.dtype) - y)


@rule("tanh_backward.default")
def tanh_backward(call: Call, grad: Tensor, y: Tensor) -> Tensor:
    return grad * (operand(1, call.dtype) - y * y)


@rule("silu_backward.default")
def silu_backward(call: Call, grad: Tensor, x: Tensor) -> Tensor:
    s, one = sigmoid(x), operand(1, call.dtype)
    return grad * s * (one + x * (one - s))


@rule("round.decimals")
def round_decimals(call: Call, x: Tensor, decimals: int = 0) -> Tensor:
    if x.dtype[0] != "f":
        return x
    power = operand(10.0 ** abs(decimals), x.dtype)
    if decimals < 0:
        return apply("round", (x / power,)) * power
    return apply("round", (x * power,)) / power


@rule("frac.default")
def frac(call: Call, x: Tensor) -> Tensor:
    return x - trunc(x)


@rule("sinc.default")
def sinc(call: Call, x: Tensor) -> Tensor:
    angle = operand(x, call.dtype) * operand(math.pi, call.dtype)
    zero, one = operand(0, call.dtype), operand(1, call.dtype)
    safe = where(equal(angle, zero), one, angle)
    return where(equal(angle, zero), one, apply("sin", (safe,)) / safe)


@rule("logaddexp.default")
def logaddexp(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return binary("logaddexp", operand(a, call.dtype), operand(b, call.dtype))


@rule("xlogy.Tensor")
def xlogy(call: Call, a: Any, b: Any) -> Tensor:
    x, y, zero = operand(a, call.dtype), operand(b, call.dtype), operand(0, call.dtype)
    return where(logical_and(equal(x, zero), logical_not(isnan(y))), zero, x * log(y))


@rule("fill.Scalar", "fill.Tensor")
def fill(call: Call, x: Tensor, value: Any) -> Tensor:
    from ...ops import broadcast_to

    return broadcast_to(operand(value, call.dtype), x.shape)
