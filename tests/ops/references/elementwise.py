"""Oracles of the elementwise ops."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle, by_onnx, elementwise, float_or_int, in_double

ml_dtypes = pytest.importorskip("ml_dtypes")  # comes with onnx
scipy_special = pytest.importorskip("scipy.special")


# -- of integers and bools ---------------------------------------------------------------------


def int_divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def int_power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 2**32)
    return 1 if a == 1 else (1 if b % 2 == 0 else -1) if a == -1 else 0


def left_shift(a: int, b: int) -> int:
    return a << b if 0 <= b < 32 else 0


def right_shift(a: int, b: int) -> int:
    return a >> (b if 0 <= b < 32 else 99)


FP16_OVERFLOW = 65520.0
"""The smallest magnitude that rounds to an infinite float16."""


def cast(case: OpSample) -> NDArray:
    to = case.attrs["to"]
    ranges = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}

    def one(value: float) -> float:
        if to == "bool":
            return value != 0
        if isinstance(value, float) and to in ranges:
            low, high = ranges[str(to)]
            if math.isfinite(value) and low <= math.trunc(value) <= high:
                return math.trunc(value)
            return low if to == "int32" or not value > 0 else high
        if case.attrs.get("overflow_nan") and abs(value) >= FP16_OVERFLOW:
            return math.nan
        return value

    return elementwise(one)(case)


# -- of floats, by Python's math ---------------------------------------------------------------


def guarded(compute: Callable[..., float]) -> Callable[..., float]:
    """NaN where Python raises an error, and where an operand is NaN."""

    def one(*values: float) -> float:
        try:
            return math.nan if any(v != v for v in values) else compute(*values)
        except (ValueError, OverflowError, ZeroDivisionError):
            return math.nan

    return one


def rounding(compute: Callable[[float], int]) -> Oracle:
    """A rounding: infinities stay, and zeros keep their signs."""

    def one(x: float) -> float:
        return math.copysign(compute(x), x) if math.isfinite(x) else x

    return float_or_int(elementwise(one), lambda case: case.inputs[0])


def remainder(a: float, b: float) -> float:
    return math.copysign(0.0, b) if math.fmod(a, b) == 0 else a % b


def floor_divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 else math.copysign(math.inf, a) * math.copysign(1, b)
    return math.nan if math.isinf(a) else a // b


def next_after(a: float, b: float) -> float:
    """The least step among all float32, counted in order: -1 is the one below 0."""

    def order(x: float) -> int:
        (word,) = struct.unpack("<I", struct.pack("<f", x))
        return int(word) if word < 1 << 31 else (1 << 31) - int(word)

    if a == b:
        return b
    place = order(a) + (1 if b > a else -1)
    value = struct.unpack("<f", struct.pack("<I", abs(place)))[0]
    return math.copysign(value, place if place else a)


def log_add(a: float, b: float) -> float:
    if a == b:
        return a + math.log(2)
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def sign(x: float) -> float:
    return x if x != x else (x > 0) - (x < 0)


# -- activations -------------------------------------------------------------------------------


def gelu_tanh(x: NDArray) -> NDArray:
    return x * scipy_special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def _gelu(x: NDArray) -> NDArray:
    return x * scipy_special.ndtr(x)


def slope_by_differences(function: Callable[[NDArray], NDArray], x: NDArray) -> NDArray:
    """The slope of a function that is straight far from 0, by central differences."""
    near = np.clip(x, -30, 30)
    return (function(near + 1e-6) - function(near - 1e-6)) / 2e-6


def with_attrs(compute: Callable[..., float], *names: str) -> Oracle:
    """A function of a value and attributes, in Python's floats."""
    return lambda case: elementwise(lambda x: compute(x, *(case.attrs[n] for n in names)))(case)


def elu(x: float, alpha: float) -> float:
    return alpha * math.expm1(x) if x < 0 else x


def celu(x: float, alpha: float) -> float:
    steep = min(x / alpha, 700.0)
    return x if x != x else max(0.0, x) + min(0.0, alpha * math.expm1(steep))


def clip(x: float, low: float | None, high: float | None) -> float:
    if x != x:
        return x
    at_least = x if low is None else max(x, low)
    return at_least if high is None else min(at_least, high)


NARROW = {7: "bfloat16", 2: "float8_e5m2", 1: "float4_e2m1fn", (3, -6): "float8_e4m3fn"}
NARROW[3, -7] = "float8_e4m3fnuz"
"""Types of ml_dtypes, by their digits behind the point, and the least exponent where it tells."""


def reduce_precision(case: OpSample) -> NDArray:
    x, digits = case.inputs[0], int(str(case.attrs["mantissa_bits"]))
    name = NARROW.get(digits) or NARROW[digits, case.attrs["min_exponent"]]
    narrow = np.dtype(getattr(ml_dtypes, name))
    if case.attrs.get("overflow") == "saturate":
        most = float(ml_dtypes.finfo(narrow).max)
        x = np.where(np.isnan(x), x, np.clip(x, -most, most)).astype(x.dtype)
    rounded = x.astype(narrow).astype(x.dtype)
    return np.where(np.isnan(x), x, rounded) if name == "float4_e2m1fn" else rounded  # without NaN


PLAIN = ("sqrt", "exp", "log", "tanh", "expm1", "log1p", "log2", "log10")
TRIGONOMETRY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"} | {
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}

ORACLES: dict[str, Oracle] = {
    **{op: in_double(getattr(np, op)) for op in PLAIN},
    **{op: in_double(getattr(np, name)) for op, name in TRIGONOMETRY.items()},
    **{op: in_double(getattr(np, op)) for op in ("sinh", "cosh", "hypot", "reciprocal")},
    **{op: elementwise(guarded(getattr(math, op))) for op in ("sin", "cos", "tan", "atan2")},
    "rsqrt": in_double(lambda x: 1 / np.sqrt(x)),
    "erf": in_double(scipy_special.erf),
    "erfc": in_double(scipy_special.erfc),
    "ceil": rounding(math.ceil),
    "floor": rounding(math.floor),
    "trunc": rounding(math.trunc),
    "round": rounding(round),
    "positive": elementwise(operator.pos),
    "neg": elementwise(lambda x: -x),
    "abs": elementwise(abs),
    "square": elementwise(lambda x: x * x),
    "sign": elementwise(sign),
    "signbit": elementwise(lambda x: math.copysign(1, x) < 0),
    "isnan": elementwise(math.isnan),
    "isinf": elementwise(math.isinf),
    "isfinite": elementwise(math.isfinite),
    "bitwise_invert": elementwise(lambda x: not x if isinstance(x, bool) else ~x),
    "logical_not": by_onnx("Not"),
    "cast": cast,
    "gelu": in_double(_gelu),
    "gelu_tanh": in_double(gelu_tanh),
    "gelu_backward": in_double(lambda x: slope_by_differences(_gelu, x)),
    "gelu_tanh_backward": in_double(lambda x: slope_by_differences(gelu_tanh, x)),
    "sigmoid": in_double(scipy_special.expit),
    "silu": in_double(lambda x: x * scipy_special.expit(x)),
    "softplus": in_double(lambda x: -scipy_special.log_expit(-x)),
    "mish": in_double(lambda x: x * np.tanh(-scipy_special.log_expit(-x))),
    "softsign": by_onnx("Softsign"),
    "hard_swish": in_double(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "hard_sigmoid": by_onnx("HardSigmoid", ("alpha", "beta")),
    "thresholded_relu": with_attrs(lambda x, alpha: 0.0 if x <= alpha else x, "alpha"),
    "leaky_relu": with_attrs(lambda x, alpha: alpha * x if x < 0 else x, "alpha"),
    "prelu": elementwise(lambda x, slope: x * slope if x < 0 else x),
    "relu": elementwise(lambda x: x if x > 0 or x != x else 0),
    "elu": with_attrs(elu, "alpha"),
    "celu": with_attrs(celu, "alpha"),
    "selu": with_attrs(lambda x, a, gamma: gamma * elu(x, a), "alpha", "gamma"),
    "reduce_precision": reduce_precision,
    "bitcast": lambda case: np.frombuffer(
        case.inputs[0].tobytes(), np.dtype(str(case.attrs["to"]))
    ).reshape(case.inputs[0].shape),
    "clip": with_attrs(clip, "low", "high"),
    "add": float_or_int(in_double(np.add), elementwise(lambda a, b: a + b)),
    "sub": float_or_int(in_double(np.subtract), elementwise(lambda a, b: a - b)),
    "mul": float_or_int(in_double(np.multiply), elementwise(lambda a, b: a * b)),
    "div": float_or_int(in_double(np.divide), elementwise(int_divide)),
    "floor_divide": float_or_int(
        elementwise(guarded(floor_divide)), elementwise(lambda a, b: a // b if b else 0)
    ),
    "remainder": float_or_int(
        elementwise(guarded(remainder)), elementwise(lambda a, b: a % b if b else 0)
    ),
    "fmod": float_or_int(
        elementwise(guarded(math.fmod)),
        elementwise(lambda a, b: a - b * int_divide(a, b) if b else 0),
    ),
    "pow": float_or_int(in_double(np.power), elementwise(int_power)),
    "maximum": elementwise(lambda a, b: math.nan if a != a or b != b else max(a, b)),
    "minimum": elementwise(lambda a, b: math.nan if a != a or b != b else min(a, b)),
    "logaddexp": elementwise(guarded(log_add)),
    "copysign": elementwise(math.copysign),
    "nextafter": elementwise(guarded(next_after)),
    "equal": elementwise(operator.eq),
    "not_equal": elementwise(operator.ne),
    "less": elementwise(operator.lt),
    "less_equal": elementwise(operator.le),
    "greater": elementwise(operator.gt),
    "greater_equal": elementwise(operator.ge),
    "logical_and": by_onnx("And"),
    "logical_or": by_onnx("Or"),
    "logical_xor": by_onnx("Xor"),
    "bitwise_and": elementwise(operator.and_),
    "bitwise_or": elementwise(operator.or_),
    "bitwise_xor": elementwise(operator.xor),
    "bitwise_left_shift": elementwise(left_shift),
    "bitwise_right_shift": elementwise(right_shift),
    "where": elementwise(lambda c, a, b: a if c else b),
    "addcmul": lambda case: elementwise(lambda x, a, b: x + case.attrs["value"] * a * b)(case),
}


# -- functions ---------------------------------------------------------------------------------


def signs(case: FunctionSample) -> NDArray:
    """The sign bits of numpy's results."""
    names = {"neg": "negative", "round": "rint", "atan2": "arctan2"} | TRIGONOMETRY
    with np.errstate(all="ignore"):
        result = getattr(np, names.get(case.name, case.name))(*case.inputs)
    return np.asarray(np.signbit(result))


def clip_function(case: FunctionSample) -> NDArray:
    x, first = case.inputs[:2]
    bounds = {"both": case.inputs[1:], "low": (first, None), "high": (None, first)}[case.name]
    return np.asarray(np.clip(x, *bounds))


FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "signbit": signs,
    "clip": clip_function,
    "relu6": lambda case: np.clip(case.inputs[0], 0, 6),
}
