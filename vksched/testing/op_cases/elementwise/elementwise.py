"""Samples of ternary elementwise ops."""

from __future__ import annotations

import numpy as np

from ....common.errors import DTypeError, ShapeError
from ..op_sample import ErrorSample, OpSample, bools, floats
from ..sample_values import INF, MANY, NAN, B, F, I, f32, refused, sample
from .binary import RANK8

Shape = tuple[int, ...]

_WHERE: list[tuple[str, str, Shape, Shape, Shape]] = [
    ("all scalar", "float32", (), (), ()),
    ("one", "int32", (1,), (1,), (1,)),
    ("many", "float32", (MANY,), (MANY,), (MANY,)),
    ("many", "int32", (MANY,), (MANY,), (MANY,)),
    ("many", "uint32", (MANY,), (MANY,), (MANY,)),
    ("many", "bool", (MANY,), (MANY,), (MANY,)),
    ("three", "float32", (5, 1, 1), (3, 1), (7,)),
    ("three", "bool", (71, 1), (73,), (1, 1)),
    ("scalars", "int32", (7, 11), (), ()),
    ("condition", "float32", (), (7, 11), (11,)),
    ("zero", "float32", (0, 1), (3,), (1, 1)),
    ("rank 8", "float32", *RANK8, (1, 1, 3, 2, 1, 1, 2, 2)),
    ("rank 8", "int32", (1, 1, 2, 3, 1, 2, 2, 1), (3, 1, 2, 1, 1, 2, 1, 1), (2, 1, 3)),
]
_SPECIAL = f32(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, INF, -INF, NAN)
CASES: list[OpSample] = [
    OpSample(
        "where", (bools(*c), sample(dtype, *a), sample(dtype, *b, seed=1)), name=dtype[0] + name
    )
    for name, dtype, c, a, b in _WHERE
]
CASES += [OpSample("where", (bools(10, 1), _SPECIAL, _SPECIAL[::-1].copy()), name="special values")]

CASES += [
    OpSample(
        "addcmul", (floats(*x), floats(*a, seed=1), floats(*b, seed=2)), {"value": value}, name
    )
    for name, value, x, a, b in (
        ("scalar", 1.0, (), (), ()),
        ("one", -0.5, (1,), (1,), (1,)),
        ("many", 0.1, (MANY,), (MANY,), (MANY,)),
        ("three", 2.0, (5, 1, 1), (3, 1), (7,)),
        ("zero", 1.0, (0, 1), (3,), (1, 1)),
        ("no factor", 0.0, (7, 11), (11,), ()),
        ("rank 8", -1.0, *RANK8, (1, 1, 3, 2, 1, 1, 2, 2)),
    )
]
_INFINITE = (np.repeat(_SPECIAL, 10), np.tile(_SPECIAL, 10), f32(2.0))
CASES += [OpSample("addcmul", _INFINITE, {"value": 1.0}, "special values")]

ERRORS: list[ErrorSample] = [
    refused("where", DTypeError, "expected a bool", F, F, F),
    refused("where", DTypeError, "one type", B, F, I),
    refused("where", ShapeError, "where", ("bool", (2,)), F, F),
    refused("where", ShapeError, "where", B, F, ("float32", (3, 2))),
    refused("addcmul", DTypeError, "three operands", F, F, I),
    refused("addcmul", DTypeError, "three operands", I, I, I),
    refused("addcmul", DTypeError, "finite number as value", F, F, F, value="2"),
    refused("addcmul", ShapeError, "addcmul", F, F, ("float32", (3, 2))),
]
