"""Elementwise functions of one operand: powers, logarithms, trigonometric and hyperbolic functions,
rounding, predicates. They match numpy to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common.dtypes import BOOL, FLOAT32, FLOATS, INT32, UINT32, NDArray
from ...ir.tensor import Tensor, TensorLike
from ..lowering.native_kernels import one_pass
from .pointwise import INTS, NUMBERS, WHOLE, declare_unary, unary
from .special import erf_into, erf_reference, erfc_reference


def _relu_reference(x: NDArray) -> NDArray:
    return np.asarray(np.maximum(x, x.dtype.type(0)))


_FLOAT_FUNCTIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": np.reciprocal,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": erf_reference,
    "erfc": erfc_reference,
}
_INTO = {"erf": one_pass("erf", erf_into)}
for _name, _compute in _FLOAT_FUNCTIONS.items():
    declare_unary(_name, (FLOAT32,), _compute, into=_INTO.get(_name))
for _name, _compute in (
    ("ceil", np.ceil),
    ("floor", np.floor),
    ("trunc", np.trunc),
    ("round", np.rint),
):
    declare_unary(_name, NUMBERS, _compute, same=WHOLE)
declare_unary("positive", NUMBERS, np.positive, same=(*FLOATS, *WHOLE))
declare_unary("neg", NUMBERS, np.negative)
declare_unary("abs", NUMBERS, np.abs, same=(UINT32,))
declare_unary("sign", NUMBERS, np.sign)
declare_unary("square", NUMBERS, np.square)
declare_unary(
    "relu", (FLOAT32, INT32), _relu_reference, into=lambda x, out: np.maximum(x, 0, out=out)
)
declare_unary("bitwise_invert", (*INTS, BOOL), np.invert)
declare_unary("logical_not", (BOOL,), np.logical_not)
declare_unary("signbit", (FLOAT32,), np.signbit, result=BOOL)
for _name, _compute in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)):
    declare_unary(_name, NUMBERS, _compute, result=BOOL)

# -- builders ----------------------------------------------------------------------------------


def sqrt(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the square root, as numpy.sqrt; negative values give NaN."""
    return unary("sqrt", x, name)


def rsqrt(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return 1 / sqrt(x); 0 gives inf."""
    return unary("rsqrt", x, name)


def reciprocal(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return 1 / x, as numpy.reciprocal; 0 gives inf of its sign."""
    return unary("reciprocal", x, name)


def square(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x * x, as numpy.square; integers wrap."""
    return unary("square", x, name)


def exp(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the exponential, as numpy.exp."""
    return unary("exp", x, name)


def expm1(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return exp(x) - 1, as numpy.expm1, accurate near 0."""
    return unary("expm1", x, name)


def log(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the natural logarithm, as numpy.log; negative values give NaN."""
    return unary("log", x, name)


def log1p(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return log(1 + x), as numpy.log1p, accurate near 0."""
    return unary("log1p", x, name)


def log2(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the logarithm to base 2, as numpy.log2; exact for powers of two."""
    return unary("log2", x, name)


def log10(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the logarithm to base 10, as numpy.log10."""
    return unary("log10", x, name)


def sin(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the sine, as numpy.sin, of any finite angle; infinite angles give NaN."""
    return unary("sin", x, name)


def cos(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the cosine, as numpy.cos, of any finite angle; infinite angles give NaN."""
    return unary("cos", x, name)


def tan(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the tangent, as numpy.tan, of any finite angle; infinite angles give NaN."""
    return unary("tan", x, name)


def asin(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the arc sine, as numpy.arcsin; values outside -1..1 give NaN."""
    return unary("asin", x, name)


def acos(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the arc cosine, as numpy.arccos; values outside -1..1 give NaN."""
    return unary("acos", x, name)


def atan(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the arc tangent, as numpy.arctan."""
    return unary("atan", x, name)


def sinh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the hyperbolic sine, as numpy.sinh."""
    return unary("sinh", x, name)


def cosh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the hyperbolic cosine, as numpy.cosh."""
    return unary("cosh", x, name)


def tanh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the hyperbolic tangent, as numpy.tanh."""
    return unary("tanh", x, name)


def asinh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the inverse hyperbolic sine, as numpy.arcsinh."""
    return unary("asinh", x, name)


def acosh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the inverse hyperbolic cosine, as numpy.arccosh; values below 1 give NaN."""
    return unary("acosh", x, name)


def atanh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the inverse hyperbolic tangent, as numpy.arctanh; values outside -1..1 give NaN."""
    return unary("atanh", x, name)


def erf(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the error function, as ONNX Erf."""
    return unary("erf", x, name)


def erfc(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return 1 - erf(x), as scipy.special.erfc, without cancellation for small results."""
    return unary("erfc", x, name)


def ceil(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Round up to an integer, as numpy.ceil; integers are unchanged."""
    return unary("ceil", x, name)


def floor(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Round down to an integer, as numpy.floor; integers are unchanged."""
    return unary("floor", x, name)


def trunc(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Round towards zero, as numpy.trunc; integers are unchanged."""
    return unary("trunc", x, name)


def round(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Round to the nearest integer, ties to even, as numpy.round; integers are unchanged."""
    return unary("round", x, name)


def positive(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x itself, as numpy.positive, without a copy."""
    return unary("positive", x, name)


def neg(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return -x, as numpy.negative; the minimum int32 is unchanged, and uint32 wraps."""
    return unary("neg", x, name)


def abs(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the absolute value, as numpy.abs; the minimum int32 is unchanged."""
    return unary("abs", x, name)


def sign(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return -1, 0 or 1, as numpy.sign; NaN propagates."""
    return unary("sign", x, name)


def relu(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return max(x, 0), as ONNX Relu; NaN propagates."""
    return unary("relu", x, name)


def bitwise_invert(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Invert every bit, as numpy.invert; negate a bool."""
    return unary("bitwise_invert", x, name)


def logical_not(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Negate a bool, as numpy.logical_not."""
    return unary("logical_not", x, name)


def signbit(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return True where the sign bit is set, as numpy.signbit, including -0."""
    return unary("signbit", x, name)


def isnan(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return True where x is NaN, as numpy.isnan; integers never are."""
    return unary("isnan", x, name)


def isinf(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return True where x is infinite, as numpy.isinf; integers never are."""
    return unary("isinf", x, name)


def isfinite(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return True where x is finite, as numpy.isfinite; integers always are."""
    return unary("isfinite", x, name)


negative = neg
"""Name in the Python array API standard."""
