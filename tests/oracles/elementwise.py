"""Oracles of the elementwise ops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vksched.cases.case import Case
from vksched.types import NDArray

from .common import Oracle, by_onnx, elementwise, float_or_int, in_double

scipy_special = pytest.importorskip("scipy.special")


def int_divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def int_power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 2**32)
    return 1 if a == 1 else (1 if b % 2 == 0 else -1) if a == -1 else 0


def cast(case: Case) -> NDArray:
    def one(value: float) -> float:
        if case.attrs["to"] == "bool":
            return value != 0
        if case.attrs["to"] == "int32" and isinstance(value, float):
            fits = math.isfinite(value) and -(2**31) <= value < 2**31
            return int(value) if fits else -(2**31)
        return value

    return elementwise(one)(case)


def gelu_tanh(x: NDArray) -> NDArray:
    return x * scipy_special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


ORACLES: dict[str, Oracle] = {
    **{op: in_double(getattr(np, op)) for op in ("sqrt", "exp", "log", "tanh")},
    "rsqrt": in_double(lambda x: 1 / np.sqrt(x)),
    "erf": in_double(scipy_special.erf),
    "gelu": in_double(lambda x: x * scipy_special.ndtr(x)),
    "gelu_tanh": in_double(gelu_tanh),
    "sigmoid": in_double(scipy_special.expit),
    "silu": in_double(lambda x: x * scipy_special.expit(x)),
    "relu": elementwise(lambda x: x if x > 0 or x != x else 0),
    "neg": elementwise(lambda x: -x),
    "abs": elementwise(abs),
    "logical_not": by_onnx("Not"),
    "cast": cast,
    "add": float_or_int(in_double(np.add), elementwise(lambda a, b: a + b)),
    "sub": float_or_int(in_double(np.subtract), elementwise(lambda a, b: a - b)),
    "mul": float_or_int(in_double(np.multiply), elementwise(lambda a, b: a * b)),
    "div": float_or_int(in_double(np.divide), elementwise(int_divide)),
    "pow": float_or_int(in_double(np.power), elementwise(int_power)),
    "maximum": elementwise(lambda a, b: math.nan if a != a or b != b else max(a, b)),
    "minimum": elementwise(lambda a, b: math.nan if a != a or b != b else min(a, b)),
    "equal": elementwise(lambda a, b: a == b),
    "not_equal": elementwise(lambda a, b: a != b),
    "less": elementwise(lambda a, b: a < b),
    "less_equal": elementwise(lambda a, b: a <= b),
    "greater": elementwise(lambda a, b: a > b),
    "greater_equal": elementwise(lambda a, b: a >= b),
    "logical_and": by_onnx("And"),
    "logical_or": by_onnx("Or"),
    "logical_xor": by_onnx("Xor"),
    "where": elementwise(lambda c, a, b: a if c else b),
}
