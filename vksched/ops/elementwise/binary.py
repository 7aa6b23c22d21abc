"""Elementwise functions of two operands, with numpy broadcasting up to rank 8.

Tensors of different types are not promoted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common.dtypes import BOOL, FLOAT32, FLOAT64, NDArray
from ...ir.tensor import Tensor, TensorLike, binary
from .pointwise import ALL, COMPARISONS, INTS, NUMBERS, declare_binary


def _div_reference(a: NDArray, b: NDArray) -> NDArray:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    down = np.floor_divide(a, b)  # 0 if b is 0
    inexact = np.subtract(a, down * b) != 0
    return np.asarray(down + (inexact & (b != 0) & ((a < 0) != (b < 0))), a.dtype)


def _pow_reference(a: NDArray, b: NDArray) -> NDArray:
    if a.dtype.kind != "i":
        return np.asarray(np.power(a, b))
    one = a.dtype.type(1)
    powers = np.power(a, np.maximum(b, 0))
    odd = np.where(b % 2 == 0, one, -one)
    negative = np.where(a == 1, one, np.where(a == -1, odd, a.dtype.type(0)))
    return np.asarray(np.where(b < 0, negative, powers), a.dtype)


_ARITHMETIC: dict[str, Callable[..., NDArray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div_reference,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "fmod": np.fmod,
    "pow": _pow_reference,
}
_FLOAT_FUNCTIONS: dict[str, Callable[..., NDArray]] = {
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "copysign": np.copysign,
}
for _name, _compute in _ARITHMETIC.items():
    declare_binary(_name, NUMBERS, _compute)
for _name, _compute in _FLOAT_FUNCTIONS.items():
    declare_binary(_name, (FLOAT32,), _compute)
declare_binary("maximum", ALL, np.maximum)
declare_binary("minimum", ALL, np.minimum)
# the result depends on the type: float16 must not be computed as float32
declare_binary("nextafter", (FLOAT32, FLOAT64), np.nextafter, any_dtype=True)
for _name in COMPARISONS:
    declare_binary(_name, ALL, getattr(np, _name), result=BOOL)
for _name in ("logical_and", "logical_or", "logical_xor"):
    declare_binary(_name, (BOOL,), getattr(np, _name), result=BOOL)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    declare_binary(_name, (*INTS, BOOL), getattr(np, _name))
declare_binary("bitwise_left_shift", INTS, np.left_shift)
declare_binary("bitwise_right_shift", INTS, np.right_shift)


# -- builders ----------------------------------------------------------------------------------


def add(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a + b, as numpy.add; integers wrap."""
    return binary("add", a, b, name)


def sub(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a - b, as numpy.subtract; integers wrap."""
    return binary("sub", a, b, name)


def mul(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a * b, as numpy.multiply; integers wrap."""
    return binary("mul", a, b, name)


def div(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a / b, as numpy.divide for floats and ONNX Div for integers.

    Integer quotients are truncated; an integer divided by 0 gives 0.
    """
    return binary("div", a, b, name)


def floor_divide(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return floor(a / b), as numpy.floor_divide; an integer divided by 0 gives 0."""
    return binary("floor_divide", a, b, name)


def remainder(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a - b * floor(a / b) with the sign of b, as numpy.remainder.

    An integer divided by 0 gives 0. The result is exact for floats with any quotient.
    """
    return binary("remainder", a, b, name)


def fmod(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a - b * trunc(a / b) with the sign of a, as numpy.fmod and ONNX Mod with fmod 1.

    An integer divided by 0 gives 0. The result is exact for floats with any quotient.
    """
    return binary("fmod", a, b, name)


def pow(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a ** b, as numpy.power.

    int32 with a negative exponent gives the truncated quotient 1 / a**-b.
    """
    return binary("pow", a, b, name)


def maximum(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the larger of two values, as numpy.maximum: NaN propagates."""
    return binary("maximum", a, b, name)


def minimum(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the smaller of two values, as numpy.minimum: NaN propagates."""
    return binary("minimum", a, b, name)


def atan2(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the angle of the point (b, a) in -pi..pi, as numpy.arctan2, with signed zeros."""
    return binary("atan2", a, b, name)


def hypot(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return sqrt(a * a + b * b), as numpy.hypot, without intermediate overflow."""
    return binary("hypot", a, b, name)


def logaddexp(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return log(exp(a) + exp(b)), as numpy.logaddexp, without intermediate overflow."""
    return binary("logaddexp", a, b, name)


def copysign(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the magnitude of a with the sign of b, as numpy.copysign."""
    return binary("copysign", a, b, name)


def nextafter(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the next float after a towards b, as numpy.nextafter; float16 is not supported."""
    return binary("nextafter", a, b, name)


def equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a == b as bool, as numpy.equal."""
    return binary("equal", a, b, name)


def not_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a != b as bool, as numpy.not_equal."""
    return binary("not_equal", a, b, name)


def less(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a < b as bool, as numpy.less; False is less than True."""
    return binary("less", a, b, name)


def less_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a <= b as bool, as numpy.less_equal."""
    return binary("less_equal", a, b, name)


def greater(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a > b as bool, as numpy.greater."""
    return binary("greater", a, b, name)


def greater_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a >= b as bool, as numpy.greater_equal."""
    return binary("greater_equal", a, b, name)


def logical_and(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a and b for bools, as numpy.logical_and."""
    return binary("logical_and", a, b, name)


def logical_or(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a or b for bools, as numpy.logical_or."""
    return binary("logical_or", a, b, name)


def logical_xor(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a xor b for bools, as numpy.logical_xor."""
    return binary("logical_xor", a, b, name)


def bitwise_and(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a & b for integers or bools, as numpy.bitwise_and."""
    return binary("bitwise_and", a, b, name)


def bitwise_or(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a | b for integers or bools, as numpy.bitwise_or."""
    return binary("bitwise_or", a, b, name)


def bitwise_xor(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a ^ b for integers or bools, as numpy.bitwise_xor."""
    return binary("bitwise_xor", a, b, name)


def bitwise_left_shift(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a << b, as numpy.left_shift; shifts of more than 31 give 0."""
    return binary("bitwise_left_shift", a, b, name)


def bitwise_right_shift(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return a >> b, as numpy.right_shift; shifts of more than 31 give 0, or -1 for a < 0."""
    return binary("bitwise_right_shift", a, b, name)


subtract, multiply, divide = sub, mul, div
"""Names in the Python array API standard."""
