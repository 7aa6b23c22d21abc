"""Samples of binary elementwise ops."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor
from ....ops.elementwise import BINARY as TYPES
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats
from ..sample_values import (
    INF,
    LOOSER,
    MANY,
    NAN,
    B,
    F,
    I,
    U,
    binary_sample,
    f32,
    grid,
    i32,
    refused,
    sample,
    tolerance,
    u32,
)

Shape = tuple[int, ...]

CASES: list[OpSample] = [
    OpSample(op, (a, b), name=f"{dtype[0]}{name}", nmse=tolerance(op))
    for op, dtype in TYPES
    for name, (a, b) in (
        ("many", (binary_sample(op, dtype, MANY), binary_sample(op, dtype, MANY, seed=1))),
        ("grid", grid(op, dtype)),
    )
]
# Operands of divisions stay within 2**-126..2**126 unless the case says otherwise.
_BIG = f32(3e38, -3e38, 1e30, -1e20, 1e-30)
_DIVISORS = f32(1e37, -1e30, 1e20, 1e-20, -1e-30)
CASES += [
    OpSample(op, (_BIG[:, None], _DIVISORS if op == "div" else _BIG), name="huge")
    for op in ("add", "sub", "mul", "div", "hypot", "atan2", "fmod", "remainder")
]
_HUGE = f32(3.4e38, 2e38, -1e38, 9e37)
CASES += [  # beyond 2**126 the kernel scales
    OpSample("div", (_HUGE[:, None], _HUGE), name="over 2**126"),
    OpSample(
        "pow", (f32(9e-20, -8e-20, 1e-13), f32(-2.0, -2.0, -3.0)), name="over denormals", nmse=1e-8
    ),
]
_SPREAD = np.asarray(floats(997) * np.exp(floats(997, seed=1, scale=8.0)), np.float32)
CASES += [
    OpSample("mul", (f32(1e-15, -2e-15, 3e-10), f32(1e-15, 1e-16, 1e-20)), name="tiny"),
    OpSample("mul", (f32(1e-30, -1e-30, 1.0), f32(1e-30, 1e-30, 1.0)), name="underflow"),
    *(
        OpSample(op, (_SPREAD, _SPREAD[::-1].copy()), name="of any ratio", nmse=tolerance(op))
        for op in ("fmod", "remainder", "floor_divide", "atan2", "hypot")
    ),
    OpSample("hypot", (f32(1e-30, 3e-37, 0.0, 1e-19, 2e38), f32(2e-30, 4e-37, 1e-37, 1e-18, 2e38))),
    OpSample("logaddexp", (f32(-0.7, 1e30, -1e30, 88.0), f32(-5.0, 1.0, 2.0, 87.0)), name="range"),
    OpSample(
        "nextafter",
        (f32(1e-45, -1e-45, 0.0, 1.2e-38, 3.4028235e38, -3.4028235e38, INF, 1.0, 16777216.0),
         f32(0.0, 0.0, -1.0, 0.0, INF, -INF, 0.0, -INF, 0.0)),
        name="bits",
        nmse=0.0,
    ),
    *(
        OpSample(op, (i32(1, -1, 5, -5, 7, -8), i32(*counts)), name=f"by {counts[0]}")
        for op in ("bitwise_left_shift", "bitwise_right_shift")
        for counts in ((31, 31, 30, 30, 1, 1), (32, 32, 33, 99, 2**31 - 1, 64), (-1,) * 6)
    ),
    *(
        OpSample(op, (u32(1, 2**31, 2**32 - 1), u32(31, 32, 2**32 - 1)), name="long")
        for op in ("bitwise_left_shift", "bitwise_right_shift")
    ),
    OpSample("prelu", (floats(3, 5, 7), floats(5, 1, seed=1)), name="slope of each channel"),
]  # fmt: skip
_BASES = f32(-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.5, INF, NAN)
_POWERS = f32(-INF, -3.0, -2.0, -1.5, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF, NAN)
_PARITY = f32(16777215.0, 16777214.0, 16777216.0, 8388607.5, 1e10, -1e10, -5.0)
"""Integers; from 2**24 on every float32 is even."""
CASES += [
    OpSample("pow", (a, b), name=name, nmse=LOOSER)
    for name, a, b in (
        ("table", _BASES[:, None], _POWERS),
        ("parity", f32(-1.0), _PARITY),
        ("range", f32(10.0, -10.0, 10.0, -10.0, -2.0), f32(39.0, 39.0, -50.0, -51.0, 5.0)),
    )
]

RANK8 = (2, 1, 3, 1, 2, 1, 2, 1), (1, 3, 1, 2, 1, 3, 1, 2)
_PAIRS: list[tuple[Shape, Shape]] = [
    ((), ()),
    ((1,), (1,)),
    ((5, 1, 7), (3, 1)),
    ((), (5, 7)),
    ((71, 73), ()),
    ((71, 73), (73,)),
    ((71, 1), (1, 73)),
    ((0, 3), (1, 3)),
    ((0,), (1,)),
    ((4, 0, 1), (5,)),
    RANK8,
    ((1, 1, 1, 1, 1, 1, 1, 3), (2, 1, 2, 1, 2, 1, 2, 1)),
    ((2, 3, 2, 1, 2, 3, 2, 3), (1,)),
    ((65537,), (65537,)),
]
CASES += [OpSample("sub", (floats(*a), floats(*b, seed=1)), name="shape") for a, b in _PAIRS]
CASES += [
    OpSample(op, (sample(dtype, *a), sample(dtype, *b, seed=1)), name=f"{dtype[0]}shape")
    for (op, dtype), (a, b) in product(
        (("sub", "int32"), ("less", "float32"), ("logical_and", "bool"), ("add", "uint32")),
        (_PAIRS[0], _PAIRS[2], RANK8),
    )
]
CASES += [
    OpSample("hypot", (floats(*a), floats(*b, seed=1)), name="shape")
    for a, b in (_PAIRS[0], _PAIRS[7])
]

# -- functions -------------------------------------------------------------------------------------

SIGNED = ("copysign", "atan2", "fmod", "remainder", "floor_divide", "nextafter")
"""Ops with signed zeros."""
_ZEROS = f32(0.0, -0.0, 1.0, -1.0, 3.0, -3.0, INF, -INF)


def _signs(op: str, a: Tensor, b: Tensor) -> Tensor:
    result: Tensor = ops.signbit(getattr(ops, op)(a, b))
    return result


def _known(op: str) -> tuple[NDArray, ...]:
    """Return pairs with a result that is a number: the sign of a NaN is undefined."""
    a, b = np.repeat(_ZEROS, 8), np.tile(_ZEROS, 8)
    keep = np.isfinite(a) & (b != 0) if op in SIGNED[2:5] else np.full(64, True)
    return a[keep], b[keep]


FUNCTIONS = [FunctionSample("signbit", partial(_signs, op), _known(op), op) for op in SIGNED]

# -- errors ----------------------------------------------------------------------------------------

ERRORS: list[ErrorSample] = [
    *(refused(op, DTypeError, "two operands", F, I) for op in ("add", "pow", "less", "equal")),
    *(refused(op, DTypeError, "two operands", I, U) for op in ("sub", "maximum", "bitwise_and")),
    *(refused(op, DTypeError, "two operands", B, B) for op in ("add", "fmod", "hypot")),
    *(refused(op, DTypeError, "two operands", F, F) for op in ("logical_and", "logical_xor")),
    *(refused(op, DTypeError, "two operands", I, I) for op in ("atan2", "copysign", "prelu")),
    *(refused(f"bitwise_{op}", DTypeError, "two operands", F, F) for op in ("or", "left_shift")),
    refused("bitwise_right_shift", DTypeError, "two operands", B, B),
    refused("nextafter", DTypeError, "try ops.cast", ("float16", (2,)), ("float16", (2,))),
    *(refused(op, ShapeError, op, F, ("float32", (4,))) for op in ("add", "div", "prelu")),
    refused("mul", ShapeError, "mul", ("int32", (2, 0)), ("int32", (2, 3))),
]
