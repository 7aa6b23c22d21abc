"""Samples of dequantize_linear: all types and ends of their ranges, partial words, each axis,
scalar and per-axis zero points and scales; and ops that move quantized weights without widening
them.
"""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NARROW, NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, apply, constant, input, weight
from ..op_sample import ErrorSample, OpSample, floats, ints
from ..sample_values import MANY, f32, i32


def packed(dtype: str, *shape: int, seed: int = 0) -> NDArray:
    """Return random integers of a type, both ends of its range first."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng((seed, *shape))
    values = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    ends = np.array([info.min, info.max], dtype)[: values.size]
    values.reshape(-1)[: ends.size] = ends
    return values


_SHAPES = ((), (1,), (2,), (3,), (5,), (MANY,), (71, 73), (2, 3, 2, 1, 2, 3, 2, 3), (0,), (3, 0))
CASES: list[OpSample] = [
    *(
        OpSample("dequantize_linear", (packed(d, *s),), {"axis": 0}, d, exact=True)
        for d in NARROW
        for s in _SHAPES
    ),
    *(
        OpSample(
            "dequantize_linear",
            (packed(dtype, *shape), *more),
            {"axis": axis},
            f"{dtype} {name}",
            exact=True,
        )
        for dtype, shape, axis in (
            *(("int8", (5, 7, 3), axis) for axis in (0, 1, 2)),
            ("uint8", (7,), 0),
            ("uint16", (71, 73), 0),
            ("int16", (71, 73), 1),
            ("uint8", (257, 33), 1),
        )
        for n in [shape[axis]]
        for name, more in (
            (f"zero {axis}", (ints(n, low=-128, high=255),)),
            (f"scale {axis}", (floats(n),)),
            (f"both {axis}", (ints(n, low=-128, high=255), floats(n))),
            (f"one zero {axis}", (i32(128),)),
            (f"one scale {axis}", (f32(0.1),)),
            (f"one of each {axis}", (np.asarray(-3, np.int32), np.asarray(0.01, np.float32))),
            (f"a zero, scales {axis}", (i32(128), floats(n))),
            (f"zeros, a scale {axis}", (ints(n), f32(-0.5))),
        )
    ),
    OpSample(
        "dequantize_linear",
        (packed("uint16", 9), i32(2**24 + 1), f32(1.5)),
        {"axis": 0},
        "far zero",
    ),
    OpSample(
        "dequantize_linear", (packed("int8", 9), i32(-(2**31))), {"axis": 0}, "wraps", exact=True
    ),
    OpSample(
        "dequantize_linear",
        (packed("int8", 4, 9), f32(np.inf, np.nan, -0.0, 1e-30)),
        {"axis": 0},
        "special",
    ),
    *(
        OpSample("gather", (packed(dtype, *shape), picks), {"axis": axis}, dtype, exact=True)
        for dtype, shape, axis in (
            *((dtype, (9, 12), 0) for dtype in NARROW),
            ("int8", (3, 5, 8), 1),
            ("uint16", (1, 2), 0),
        )
        for picks in [ints(4, low=-shape[axis], high=shape[axis])]
    ),
]

ERRORS: list[ErrorSample] = [
    ErrorSample(build, error, match)
    for build, error, match in (
        (lambda: ops.dequantize_linear(weight(floats(3))), DTypeError, "expected one of int8"),
        (lambda: ops.dequantize_linear(_w(), scale=ints(1)), DTypeError, "a scale of float32"),
        (lambda: ops.dequantize_linear(_w(), zero=floats(1)), DTypeError, "a zero of int32"),
        (
            lambda: ops.dequantize_linear(_w(), scale=floats(2)),
            ShapeError,
            "each position along axis 0",
        ),
        (
            lambda: ops.dequantize_linear(_w(), scale=floats(3, 1)),
            ShapeError,
            "each position along axis 0",
        ),
        (lambda: ops.dequantize_linear(_w(), floats(3), axis=2), ShapeError, "axis"),
        (lambda: _applied(i32(0), i32(0)), DTypeError, "int32 and int32"),
        (lambda: _applied(f32(0), i32(0)), DTypeError, "float32 and int32"),
        (lambda: ops.relu(_w()), DTypeError, "try ops.dequantize_linear"),
        (lambda: _w() + 1, DTypeError, "expected"),
        (lambda: ops.cast(_w(), "float32"), DTypeError, "try ops.dequantize_linear"),
        (lambda: constant(packed("int8", 3)), DTypeError, "astype"),
        (lambda: input("x", (3,), "int8"), DTypeError, "expected one of"),
        (lambda: ops.cast(floats(3), "int8"), DTypeError, "expected one of"),
    )
]


def _applied(*parts: NDArray) -> Tensor:
    return apply("dequantize_linear", (_w(), *map(constant, parts)), {"axis": 0})


def _w() -> Tensor:
    return weight(packed("int8", 3, 4))
