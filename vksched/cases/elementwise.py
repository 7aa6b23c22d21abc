"""Cases of the elementwise ops: unary, cast, binary, where."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import vksched as vs

from ..ops import elementwise as ops
from ..types import NDArray
from .case import Case, ErrorCase, bools, floats, ints

Shape = tuple[int, ...]

MANY = 5003
"""A prime, and more than one work group."""
LEAST, MOST = -(2**31), 2**31 - 1
INF, NAN = np.inf, np.nan
COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
EXACT = {"relu", "neg", "abs", "sqrt", "rsqrt", "add", "sub", "mul", "div", "maximum", "minimum"}
"""Float ops that drivers compute to a few units in the last place."""
LOOSE = 1e-10
"""Ops on exp and log, which Vulkan lets be off by tens of units in the last place."""
LOOSER = 1e-8
"""Pow, exp and gelu far from 0: Vulkan's allowed error of exp grows with its argument."""


def f32(*values: float) -> NDArray:
    return np.asarray(values, np.float32)


def i32(*values: int) -> NDArray:
    return np.asarray(values, np.int32)


def sample(dtype: str, *shape: int, seed: int = 0) -> NDArray:
    """Ordinary values of a type."""
    if dtype == "float32":
        return floats(*shape, seed=seed, scale=2.0)
    if dtype == "int32":
        return ints(*shape, seed=seed)
    return bools(*shape, seed=seed)


def tolerance(op: str) -> float:
    return 1e-12 if op in EXACT else LOOSER if op == "pow" else LOOSE


def unary_sample(op: str, dtype: str, *shape: int) -> NDArray:
    """Within the domain: sqrt, rsqrt and log get values of at least 0.1."""
    x = sample(dtype, *shape)
    return np.asarray(np.abs(x) + np.float32(0.1)) if op in ("sqrt", "rsqrt", "log") else x


def binary_sample(op: str, dtype: str, *shape: int, seed: int = 0) -> NDArray:
    """Within the domain: a float pow gets a positive base, an int pow a small exponent."""
    x = sample(dtype, *shape, seed=seed)
    if op == "pow" and dtype == "float32":
        return np.asarray(np.abs(x) + np.float32(0.1)) if seed == 0 else x
    return np.asarray(x % 13 - 3, np.int32) if op == "pow" else x


# -- unary and cast ----------------------------------------------------------------------------

_SPECIAL = f32(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 0.4999, -0.5001, NAN, INF, -INF)
_HUGE = f32(1e30, -1e30, 1e15, -1e15, 100.0, -100.0, 20.0, -20.0)
_INT_EDGES = i32(0, 1, -1, 2, -2, LEAST, LEAST + 1, MOST, MOST - 1, 65536, -65536)
_EDGES = {"float32": _SPECIAL, "int32": _INT_EDGES, "bool": np.asarray([False, True])}

UNARY = [
    Case(op, (x,), name=f"{dtype[0]}{name}", nmse=tolerance(op))
    for op, dtype in ops.UNARY
    for name, x in (
        ("many", unary_sample(op, dtype, MANY)),
        ("edges", _EDGES[dtype]),
    )
]
UNARY += [
    Case(op, (_HUGE,), name="huge", nmse=tolerance(op))
    for op in ("tanh", "erf", "gelu", "gelu_tanh", "silu", "sigmoid")
]
UNARY += [  # results near 0 keep their digits
    Case(op, (floats(101, scale=1e-3),), name="small", nmse=LOOSE)
    for op in ("tanh", "erf", "gelu", "gelu_tanh", "silu")
]
UNARY += [
    Case("gelu", (np.linspace(-7, -5, 41, dtype=np.float32),), name="tail", nmse=LOOSER),
    Case("exp", (f32(88.5, 89.0, 200.0, 1e30, -1e30, -200.0, 80.0),), name="range", nmse=LOOSER),
    Case("log", (f32(1e-37, 1e-20, 1e20, 3e38),), name="range", nmse=LOOSE),
    Case("sqrt", (f32(1e-37, 1e-20, 1e-30),), name="tiny"),
    Case("sqrt", (f32(3e38, 1e38, 1e30),), name="huge"),
    Case("rsqrt", (f32(1e-37, 1e-36, 2e-37),), name="tiny"),
    Case("rsqrt", (f32(3e38, 1e38, 2e38),), name="huge"),
    *(Case("relu", (sample("float32", *s),)) for s in ((1,), (0,), (3, 0, 5), (7, 11, 13))),
    Case("relu", (sample("float32", 65537),), name="over 65536"),
    *(Case(op, (unary_sample(op, "float32"),)) for op in ("relu", "sqrt", "gelu")),
    Case("neg", (ints(2, 1, 3, 1, 2, 1, 5, 1),), name="rank 8"),
    *(Case("logical_not", (bools(*shape),)) for shape in ((), (1,), (0,))),
]

_CAST_EDGES: dict[str, NDArray] = {
    "float32": f32(
        *(0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 2.5, 1e-37, -1e-37, 16777217.0, 2147483520.0),
        *(2147483648.0, -2147483648.0, -2147483904.0, 3e9, -3e9, 3e38, -3e38, INF, -INF, NAN),
    ),
    "int32": i32(*_INT_EDGES, 16777217, -16777217, 16777219, 2147483583, 2147483584),
    "bool": _EDGES["bool"],
}
CAST = [
    Case("cast", (x,), {"to": to}, f"{dtype[0]}2{to[0]}{name}")
    for dtype, to in ops.CASTS
    for name, x in (("many", sample(dtype, MANY)), ("edges", _CAST_EDGES[dtype]))
]
CAST += [
    Case("cast", (sample("float32", *shape),), {"to": "int32"}, "f2i")
    for shape in ((), (1,), (0, 3), (7, 11, 13))
]
CAST += [Case("cast", (ints(7),), {"to": "int32"}, "same")]
_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
"""Every float16 there is."""
_STEPS = np.sort(_HALVES[np.isfinite(_HALVES)]).astype(np.float32)
_MIDDLES = np.asarray((_STEPS[1:] + _STEPS[:-1]) / 2, np.float32)
CAST += [
    Case("cast", (np.where(np.isnan(_HALVES), np.float16("nan"), _HALVES),), {"to": "float32"}),
    Case("cast", (_STEPS,), {"to": "float16"}, "steps"),
    Case("cast", (_MIDDLES,), {"to": "float16"}, "ties"),
    Case("cast", (np.nextafter(_MIDDLES, np.float32("inf")),), {"to": "float16"}, "above ties"),
    Case("cast", (f32(65519, 65520, -65520, 1e10, INF, -INF, NAN, 1e-9),), {"to": "float16"}),
    Case("cast", (floats(7).astype(np.float16),), {"to": "int32"}, "h2i"),
    Case("cast", (ints(7),), {"to": "float16"}, "i2h"),
]

# -- binary ------------------------------------------------------------------------------------

_GRID = f32(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, INF, -INF, NAN)
_WIDE = np.concatenate([_GRID, f32(3e38, -3e38, 1e-30, -1e-30, 1.0000001)])


def grid(op: str, dtype: str) -> NDArray:
    """Edge values, to be paired with each other."""
    if dtype == "float32":
        return _WIDE if op in COMPARE else _GRID
    return (
        np.concatenate([_INT_EDGES, i32(3, -7, 31, 46341)]) if dtype == "int32" else _EDGES["bool"]
    )


BINARY = [
    Case(op, (a, b), name=f"{dtype[0]}{name}", nmse=tolerance(op))
    for op, dtype in ops.BINARY
    for name, a, b in (
        ("many", binary_sample(op, dtype, MANY), binary_sample(op, dtype, MANY, seed=1)),
        ("grid", grid(op, dtype)[:, None], grid(op, dtype)),
    )
]
# Operands stay within 2**-126..2**126 where they divide: Vulkan defines no error beyond.
_BIG = f32(3e38, -3e38, 1e30, -1e20, 1e-30)
_DIVISORS = f32(1e37, -1e30, 1e20, 1e-20, -1e-30)
BINARY += [
    Case(op, (_BIG[:, None], _DIVISORS if op == "div" else _BIG), name="huge")
    for op in ("add", "sub", "mul", "div")
]
BINARY += [
    Case("mul", (f32(1e-15, -2e-15, 3e-10), f32(1e-15, 1e-16, 1e-20)), name="tiny"),
    Case("mul", (f32(1e-30, -1e-30, 1.0), f32(1e-30, 1e-30, 1.0)), name="underflow"),
]
_BASES = f32(-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.5, INF, NAN)
_POWERS = f32(-INF, -3.0, -2.0, -1.5, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF, NAN)
_PARITY = f32(16777215.0, 16777214.0, 16777216.0, 8388607.5, 1e10, -1e10, -5.0)
"""Of whole numbers; from 2**24 on every float32 is even."""
BINARY += [
    Case("pow", (a, b), name=name, nmse=LOOSER)
    for name, a, b in (
        ("table", _BASES[:, None], _POWERS),
        ("parity", f32(-1.0), _PARITY),
        ("range", f32(10.0, -10.0, 10.0, -10.0, -2.0), f32(39.0, 39.0, -50.0, -51.0, 5.0)),
    )
]

_RANK8 = (2, 1, 3, 1, 2, 1, 2, 1), (1, 3, 1, 2, 1, 3, 1, 2)
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
    _RANK8,
    ((1, 1, 1, 1, 1, 1, 1, 3), (2, 1, 2, 1, 2, 1, 2, 1)),
    ((2, 3, 2, 1, 2, 3, 2, 3), (1,)),
    ((65537,), (65537,)),
]
BINARY += [Case("sub", (floats(*a), floats(*b, seed=1)), name="shape") for a, b in _PAIRS]
BINARY += [
    Case(op, (sample(dtype, *a), sample(dtype, *b, seed=1)), name=f"{dtype[0]}shape")
    for (op, dtype), (a, b) in product(
        (("sub", "int32"), ("less", "float32"), ("logical_and", "bool")),
        (_PAIRS[0], _PAIRS[2], _RANK8),
    )
]

# -- where -------------------------------------------------------------------------------------

_WHERE: list[tuple[str, str, Shape, Shape, Shape]] = [
    ("all scalar", "float32", (), (), ()),
    ("one", "int32", (1,), (1,), (1,)),
    ("many", "float32", (MANY,), (MANY,), (MANY,)),
    ("many", "int32", (MANY,), (MANY,), (MANY,)),
    ("many", "bool", (MANY,), (MANY,), (MANY,)),
    ("three", "float32", (5, 1, 1), (3, 1), (7,)),
    ("three", "bool", (71, 1), (73,), (1, 1)),
    ("scalars", "int32", (7, 11), (), ()),
    ("condition", "float32", (), (7, 11), (11,)),
    ("zero", "float32", (0, 1), (3,), (1, 1)),
    ("rank 8", "float32", *_RANK8, (1, 1, 3, 2, 1, 1, 2, 2)),
    ("rank 8", "int32", (1, 1, 2, 3, 1, 2, 2, 1), (3, 1, 2, 1, 1, 2, 1, 1), (2, 1, 3)),
]
WHERE = [
    Case("where", (bools(*c), sample(dtype, *a), sample(dtype, *b, seed=1)), name=dtype[0] + name)
    for name, dtype, c, a, b in _WHERE
]
WHERE += [Case("where", (bools(10, 1), _GRID, _GRID[::-1].copy()), name="special values")]

CASES: list[Case] = [*UNARY, *CAST, *BINARY, *WHERE]

# -- errors ------------------------------------------------------------------------------------


def refused(
    op: str, error: type[Exception], match: str, *types: tuple[str, tuple[int, ...]], **more: Any
) -> ErrorCase:
    """vs.<op> on inputs of the given types."""

    def build() -> object:
        args = [vs.input(f"x{i}", shape, dtype) for i, (dtype, shape) in enumerate(types)]
        return getattr(vs, op)(*args, **more)

    return ErrorCase(build, error, match)


_F, _I, _B = (("float32", (2, 3)), ("int32", (2, 3)), ("bool", (2, 3)))
ERRORS: list[ErrorCase] = [
    *(refused(op, vs.DTypeError, op, t) for op in ("exp", "gelu", "sqrt") for t in (_I, _B)),
    *(refused(op, vs.DTypeError, "float32 or int32", _B) for op in ("neg", "abs", "relu")),
    *(refused("logical_not", vs.DTypeError, "expected bool", t) for t in (_F, _I)),
    refused("gelu", vs.DTypeError, "approximate", _F, approximate="sigmoid"),
    *(
        refused("cast", vs.DTypeError, "expected one of", _F, dtype=d)
        for d in ("complex64", "int8")
    ),
    *(refused(op, vs.DTypeError, "two operands", _F, _I) for op in ("add", "pow", "less", "equal")),
    *(refused(op, vs.DTypeError, "two operands", _B, _B) for op in ("add", "maximum", "less")),
    *(refused(op, vs.DTypeError, "two operands", _F, _F) for op in ("logical_and", "logical_xor")),
    *(refused(op, vs.ShapeError, op, _F, ("float32", (4,))) for op in ("add", "div", "equal")),
    refused("mul", vs.ShapeError, "mul", ("int32", (2, 0)), ("int32", (2, 3))),
    refused("where", vs.DTypeError, "expected a bool", _F, _F, _F),
    refused("where", vs.DTypeError, "one type", _B, _F, _I),
    refused("where", vs.ShapeError, "where", ("bool", (2,)), _F, _F),
    refused("where", vs.ShapeError, "where", _B, _F, ("float32", (3, 2))),
]
