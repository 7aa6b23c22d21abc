"""Samples of unary elementwise ops, activations, casts and clips."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor
from ....ops.elementwise import CASTS
from ....ops.elementwise import UNARY as TYPES
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, ints
from ..sample_values import (
    EDGES,
    INF,
    INT_EDGES,
    LOOSE,
    LOOSER,
    MANY,
    MOST,
    NAN,
    UINT_EDGES,
    B,
    F,
    I,
    U,
    f32,
    i32,
    refused,
    sample,
    tolerance,
    u32,
    unary_sample,
)

MAX_BFLOAT16 = 3.3895313892515355e38
ATTRS: dict[str, tuple[dict[str, Any], ...]] = {
    "elu": ({"alpha": 1.0}, {"alpha": 0.3}, {"alpha": -1.5}),
    "celu": ({"alpha": 1.0}, {"alpha": 0.3}, {"alpha": 2.5}, {"alpha": -1.5}),
    "selu": (
        {"alpha": 1.6732631921768188, "gamma": 1.0507010221481323},
        {"alpha": 0.5, "gamma": -2.0},
    ),
    "leaky_relu": ({"alpha": 0.01}, {"alpha": -0.5}, {"alpha": 0.0}),
    "thresholded_relu": ({"alpha": 1.0}, {"alpha": -0.5}, {"alpha": 0.0}),
    "hard_sigmoid": ({"alpha": 0.2, "beta": 0.5}, {"alpha": 1.0, "beta": 0.0}),
    "reduce_precision": (
        {"mantissa_bits": 7, "min_exponent": -126, "max_finite": MAX_BFLOAT16, "overflow": "inf"},
        {"mantissa_bits": 3, "min_exponent": -6, "max_finite": 448.0, "overflow": "nan"},
        {"mantissa_bits": 3, "min_exponent": -7, "max_finite": 240.0, "overflow": "saturate"},
        {"mantissa_bits": 2, "min_exponent": -14, "max_finite": 57344.0, "overflow": "inf"},
        {"mantissa_bits": 1, "min_exponent": 0, "max_finite": 6.0, "overflow": "saturate"},
    ),
    "clip": (
        {"low": -1, "high": 1},
        {"low": None, "high": 2},
        {"low": 3, "high": None},
        {"low": 3, "high": 1},
        {"low": None, "high": None},
    ),
}
"""Attributes of ops; the first are the default of samples."""


def attrs(op: str, dtype: str = "float32", which: int = 0) -> dict[str, Any]:
    """Return the attributes of a sample; those of uint32 are unsigned."""
    chosen = ATTRS.get(op, ({},))[which]
    if dtype != "uint32":
        return chosen
    return {k: abs(v) if isinstance(v, int) else v for k, v in chosen.items()}


def row(op: str, x: NDArray, name: str, nmse: float | None = None, which: int = 0) -> OpSample:
    chosen = attrs(op, x.dtype.name, which)
    return OpSample(op, (x,), chosen, name, tolerance(op) if nmse is None else nmse)


UNARY = [
    row(op, x, f"{dtype[0]}{name}")
    for op, dtype in TYPES
    for name, x in (("many", unary_sample(op, dtype, MANY)), ("edges", EDGES[dtype]))
]
UNARY += [
    row(
        op,
        EDGES[dtype] if which % 2 else sample(dtype, 101),
        f"{dtype[0]}attrs {which}",
        which=which,
    )
    for op, dtype in TYPES
    for which in range(1, len(ATTRS.get(op, ())))
]
UNARY += [
    row("reduce_precision", x, f"{name} {which}", which=which)
    for which in range(len(ATTRS["reduce_precision"]))
    for name, x in (
        ("ties", np.ldexp(f32(*range(1, 130)), -9)),
        ("range", np.geomspace(1e-45, 3.4e38, 1009).astype(np.float32)),
        ("ends", f32(464.0, 464.1, 447.9, 248.0, 248.1, 61440.0, 61439.0, 3.3961775e38, 3.396e38)),
    )
]
_HUGE = f32(1e30, -1e30, 1e15, -1e15, 100.0, -100.0, 20.0, -20.0)
UNARY += [
    row(op, _HUGE, "huge")
    for op in (
        *("tanh", "erf", "erfc", "gelu", "gelu_tanh", "silu", "sigmoid", "softplus", "mish"),
        *("gelu_backward", "gelu_tanh_backward"),
        *("softsign", "hard_swish", "hard_sigmoid", "elu", "selu", "celu", "expm1", "atan"),
        *("asinh", "sinh", "cosh", "square"),
    )
]
UNARY += [  # bitwise, regardless of a driver's handling of denormals
    row(op, f32(1e-40, 2e-39, 1.1e-38, 1e-45), "denormal")
    for op in ("log", "log2", "log10", "sqrt", "rsqrt")
]
UNARY += [  # results near 0 are exact
    row(op, floats(101, scale=1e-3), "small", LOOSE)
    for op in (
        *("tanh", "erf", "gelu", "gelu_tanh", "silu", "expm1", "log1p", "sin", "tan", "asin"),
        *("atan", "sinh", "asinh", "atanh", "mish", "elu", "celu", "softsign"),
    )
]
_QUARTERS = (np.arange(1, 200) * (np.pi / 2)).astype(np.float32)
_ANGLES = {
    "to 1e5": np.linspace(-1e5, 1e5, 2003, dtype=np.float32),
    "quarters": np.concatenate([_QUARTERS, -_QUARTERS, _QUARTERS * np.float32(4321)]),
    "large": np.geomspace(1e5, 3.4e38, 501).astype(np.float32),
    # the float32 nearest to a multiple of pi / 2
    "nearest": f32(16367173.0 * 2.0**72, 3.4028235e38, -(2.0**127), 0.78539819, 0.78, 0.5),
}
UNARY += [row(op, x, name) for op in ("sin", "cos", "tan") for name, x in _ANGLES.items()]
_NEAR_1 = np.asarray(1 - np.geomspace(1e-7, 0.3, 97), np.float32)
UNARY += [
    row("gelu", np.linspace(-7, -5, 41, dtype=np.float32), "tail", LOOSER),
    row("exp", f32(88.5, 89.0, 200.0, 1e30, -1e30, -200.0, 80.0, -80.0), "range", 1e-12),
    row("expm1", f32(88.5, 89.0, 80.0, 20.1, 19.9, -17.9, -18.1, 0.347, -0.347), "range"),
    *(
        row(op, f32(88.5, 89.3, -89.3, 90.0, -90.1, 9.1, 8.9, -9.1), "range")
        for op in ("sinh", "cosh")
    ),
    *(row(op, f32(1e-37, 1e-20, 1e20, 3e38), "range") for op in ("log", "log2", "log10")),
    *(row(op, np.concatenate([_NEAR_1, 2 - _NEAR_1]), "near 1") for op in ("log", "log2", "log10")),
    row("log2", np.exp2(np.arange(-126, 128)).astype(np.float32), "powers", 0.0),
    row("log10", f32(*(10.0**n for n in range(-37, 39))), "powers", 1e-12),
    row("log1p", f32(-1.0, -0.9999, -1.0001, -0.3, -0.28, 0.4, 0.42, 1e20, 3e38), "range"),
    *(
        row(op, np.concatenate([_NEAR_1, -_NEAR_1, f32(1.0, -1.0, 1.0000001, 2.0)]), "near 1")
        for op in ("asin", "acos", "atanh")
    ),
    row("acosh", np.concatenate([2 - _NEAR_1, f32(1.0, 0.9, -2.0, 1e10, 3e38)]), "near 1"),
    row("asinh", f32(1e9, -1.1e9, 3e38, -3e38), "large"),
    row("atan", f32(2.4142, -0.4142, 1.1e9, 0.9e9, -3e38), "range"),
    row("erfc", np.linspace(-3, 8.9, 61, dtype=np.float32), "tail"),
    row("softplus", f32(-80.0, -17.0, 17.0, 80.0), "range"),
    row("mish", f32(-80.0, -17.0, 17.0, 80.0), "range"),
    row("reciprocal", f32(1e-37, -1e-30, 1e30, -8e37), "range"),
    *(
        row(
            op,
            f32(2.5, 3.5, -1.5, 0.49999997, -0.3, 0.3, 8388607.5, -4194303.5, 8388609.0, 3e38),
            "halves",
        )
        for op in ("ceil", "floor", "trunc", "round")
    ),
    OpSample("sqrt", (f32(1e-37, 1e-20, 1e-30),), name="tiny"),
    OpSample("sqrt", (f32(3e38, 1e38, 1e30),), name="huge"),
    OpSample("rsqrt", (f32(1e-37, 1e-36, 2e-37),), name="tiny"),
    OpSample("rsqrt", (f32(3e38, 1e38, 2e38),), name="huge"),
    *(OpSample("relu", (sample("float32", *s),)) for s in ((1,), (0,), (3, 0, 5), (7, 11, 13))),
    OpSample("relu", (sample("float32", 65537),), name="over 65536"),
    *(
        OpSample(op, (unary_sample(op, "float32"),))
        for op in ("relu", "sqrt", "gelu", "sin", "round")
    ),
    *(
        OpSample(op, (sample("float32", 0, 3),), nmse=tolerance(op))
        for op in ("sin", "isnan", "floor")
    ),
    *(
        OpSample("positive", (x,), name=x.dtype.name)
        for x in (floats(3, 5), bools(1) + np.int32(2))
    ),
    OpSample("neg", (ints(2, 1, 3, 1, 2, 1, 5, 1),), name="rank 8"),
    *(OpSample("logical_not", (bools(*shape),)) for shape in ((), (1,), (0,))),
    OpSample("clip", (INT_EDGES,), {"low": -(2**31), "high": MOST - 1}, "int ends"),
    OpSample("clip", (UINT_EDGES,), {"low": 2, "high": 2**32 - 2}, "uint ends"),
    OpSample("clip", (sample("float32", 101),), {"low": -INF, "high": 0.1}, "float ends", nmse=0.0),
]

# -- cast ------------------------------------------------------------------------------------------

_CAST_EDGES: dict[str, NDArray] = {
    "float32": f32(
        *(0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 2.5, 1e-37, -1e-37, 16777217.0, 2147483520.0),
        *(2147483648.0, -2147483648.0, -2147483904.0, 3e9, -3e9, 3e38, -3e38, INF, -INF, NAN),
        *(4294967040.0, 4294967296.0, -1.0),
    ),
    "int32": i32(*INT_EDGES, 16777217, -16777217, 16777219, 2147483583, 2147483584),
    "uint32": u32(*UINT_EDGES, 16777217, 16777219, 4294967167, 4294967168),
    "bool": EDGES["bool"],
}
CAST = [
    OpSample("cast", (x,), {"to": to}, f"{dtype[0]}2{to[0]}{name}")
    for dtype, to in CASTS
    for name, x in (("many", sample(dtype, MANY)), ("edges", _CAST_EDGES[dtype]))
]
CAST += [
    OpSample("cast", (sample("float32", *shape),), {"to": "int32"}, "f2i")
    for shape in ((), (1,), (0, 3), (7, 11, 13))
]
CAST += [OpSample("cast", (ints(7),), {"to": "int32"}, "same")]
CAST += [
    OpSample("cast", (x,), {"to": "float16", "overflow_nan": True}, f"nan{len(x)}", nmse=0.0)
    for x in (
        f32(65519, 65520, -65519, -65520, 7e4, -1e10, INF, -INF, NAN, 1e-9, 0.0, -1.5, -65504),
        f32(7e4),
        f32(1, -7e4, 3, 1e5, 5, 6),
    )
]
_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
"""All float16 values."""
_STEPS = np.sort(_HALVES[np.isfinite(_HALVES)]).astype(np.float32)
_MIDDLES = np.asarray((_STEPS[1:] + _STEPS[:-1]) / 2, np.float32)
CAST += [
    OpSample("cast", (np.where(np.isnan(_HALVES), np.float16("nan"), _HALVES),), {"to": "float32"}),
    OpSample("cast", (_STEPS,), {"to": "float16"}, "steps"),
    OpSample("cast", (_MIDDLES,), {"to": "float16"}, "ties"),
    OpSample("cast", (np.nextafter(_MIDDLES, np.float32("inf")),), {"to": "float16"}, "above ties"),
    OpSample("cast", (f32(65519, 65520, -65520, 1e10, INF, -INF, NAN, 1e-9),), {"to": "float16"}),
    OpSample("cast", (floats(7).astype(np.float16),), {"to": "int32"}, "h2i"),
    OpSample("cast", (f32(-INF, INF, NAN, -3.5, 3.5).astype(np.float16),), {"to": "uint32"}, "h2u"),
    OpSample("cast", (ints(7),), {"to": "float16"}, "i2h"),
    *(
        OpSample("cast", (ints(MANY, low=0).astype(dtype),), {"to": to}, f"{dtype} to {to}")
        for dtype, to in (
            *(("int64", other) for other in ("int32", "uint32", "float32", "float16", "bool")),
            *((other, "int64") for other in ("int32", "uint32", "float32", "float16", "bool")),
            *(("float64", other) for other in ("float32", "int32", "int64", "float16", "bool")),
            *((other, "float64") for other in ("float32", "int32", "int64", "float16", "bool")),
        )
    ),
]

_WORDS = {"float32": EDGES["float32"], "int32": INT_EDGES, "uint32": UINT_EDGES}
BITCAST = [
    OpSample("bitcast", (x,), {"to": to}, f"{dtype} to {to}")
    for dtype, x in _WORDS.items()
    for to in _WORDS
    # any word may be a NaN: devices do not preserve its bits
    if to != "float32" or dtype == "float32"
]
BITCAST += [
    OpSample("bitcast", (ints(*shape, low=0),), {"to": "float32"}, "positive")
    for shape in ((), (0,), (1,), (3, 5), (MANY,))
]

CASES: list[OpSample] = [*UNARY, *CAST, *BITCAST]

# -- functions -------------------------------------------------------------------------------------

ODD = (
    *("neg", "sqrt", "reciprocal", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh"),
    *("expm1", "log1p", "ceil", "floor", "trunc", "round", "positive"),
)
"""Ops with signed zeros."""


def _signs(op: str, x: Tensor) -> Tensor:
    result: Tensor = ops.signbit(getattr(ops, op)(x))
    return result


FUNCTIONS = [
    FunctionSample(
        "signbit", partial(_signs, op), (f32(0.0, -0.0, 0.3, 0.7 if op == "sqrt" else -0.3),), op
    )
    for op in ODD
]
FUNCTIONS += [
    FunctionSample("relu6", ops.relu6, (f32(-1.0, 0.5, 6.5, NAN, INF, -INF),)),
    FunctionSample(
        "clip", ops.clip, (floats(5, 7), floats(7, seed=1), floats(5, 1, seed=2)), "both"
    ),
    FunctionSample("clip", lambda x, low: ops.clip(x, low), (floats(5), floats(3, 1)), "low"),
    FunctionSample(
        "clip", lambda x, high: ops.clip(x, high=high), (ints(5), ints(3, 1, seed=1)), "high"
    ),
]

# -- errors ----------------------------------------------------------------------------------------

ERRORS: list[ErrorSample] = [
    *(refused(op, DTypeError, op, t) for op in ("exp", "gelu", "sqrt") for t in (I, B)),
    *(refused(op, DTypeError, op, t) for op in ("sin", "reciprocal", "mish") for t in (I, U)),
    *(refused(op, DTypeError, "float32 or int32", B) for op in ("neg", "abs", "relu", "round")),
    *(refused("logical_not", DTypeError, "expected bool", t) for t in (F, I)),
    refused("bitwise_invert", DTypeError, "int32 or uint32 or bool", F),
    refused("signbit", DTypeError, "expected float32", I),
    refused("gelu", DTypeError, "approximate", F, approximate="sigmoid"),
    *(refused("cast", DTypeError, "expected one of", F, dtype=d) for d in ("complex64", "int8")),
    *(
        refused(op, DTypeError, "finite number as alpha", F, alpha=alpha)
        for op in ("elu", "celu", "leaky_relu", "thresholded_relu", "hard_sigmoid", "selu")
        for alpha in ("1", INF)
    ),
    refused("selu", DTypeError, "finite number as gamma", F, gamma=None),
    refused("hard_sigmoid", DTypeError, "finite number as beta", F, beta=1e39),
    refused("celu", DTypeError, "other than 0", F, alpha=0.0),
    refused("celu", DTypeError, "other than 0", F, alpha=1e-60),
    refused("celu", DTypeError, "other than 0", F, alpha=-1e-40),
    *(
        refused(
            "reduce_precision",
            ShapeError,
            match,
            F,
            mantissa_bits=d,
            min_exponent=e,
            max_finite=1.0,
        )
        for match, d, e in (("mantissa bits", 0, 0), ("mantissa bits", 23, 0), ("steps", 7, -125))
    ),
    partial(refused, "reduce_precision", DTypeError, "one of", F)(
        mantissa_bits=7, min_exponent=0, max_finite=1.0, overflow="zero"
    ),
    *(
        refused("bitcast", DTypeError, "try vs.cast", t, dtype=d)
        for t, d in ((F, "float16"), (B, "int32"), (("int64", (2,)), "float32"))
    ),
    refused("clip", DTypeError, "got NaN", F, low=NAN),
    refused("clip", DTypeError, "values of int32", I, low=0.5),
    refused("clip", DTypeError, "values of uint32", U, low=-1),
    refused("clip", DTypeError, "clip", B, low=True),
    refused("clip", DTypeError, "two operands", F, I),
    refused("clip", ShapeError, "broadcast", F, ("float32", (4,))),
]
