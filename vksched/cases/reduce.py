"""Cases of the reductions: any axes, long and short rows, rounding, NaN and infinity, nothing."""

from __future__ import annotations

import numpy as np

import vksched as vs

from ..ops.reduce import REDUCE_CODES
from ..types import NDArray
from .case import Case, ErrorCase, floats, ints

FLOAT_OPS = tuple(REDUCE_CODES)
INT_OPS = tuple(op for op in FLOAT_OPS if op != "reduce_mean")

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((), ()), ((1,), (0,)), ((7,), (0,)), ((5, 3), ()), ((5, 3), (0,)), ((5, 3), (1,))),
    *(((4, 1000), (1,)), ((1000, 4), (0,)), ((300, 5, 7), (0, 2)), ((3, 4, 5, 6), (1, 2))),
    *(((20000,), (0,)), ((2, 17000), (1,)), ((200, 31), (1,)), ((70, 33), (0, 1))),
    ((2, 3, 2, 3, 2, 3, 2, 3), (0, 2, 4, 6)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (1, 3, 5, 7)),
    ((2, 1, 3, 1, 2, 1, 2, 40), (0, 1, 2, 4, 7)),
]


def case(op: str, x: NDArray, axes: tuple[int, ...], keepdims: bool, name: str) -> Case:
    return Case(op, (x,), {"axes": axes, "keepdims": keepdims}, name)


def edge_rows() -> NDArray:
    """Rows with NaN, both infinities, one of them, only infinities, and zeros."""
    rows = np.tile(floats(40), (7, 1))
    rows[0, 3] = np.nan
    rows[1, 3], rows[1, 30] = np.inf, -np.inf
    rows[2, 39] = np.inf
    rows[3, :] = -np.inf
    rows[4, :] = 0
    rows[5, 38], rows[5, 39] = np.inf, np.nan
    return rows


def hard_sum() -> NDArray:
    """Values whose plain float32 sum loses everything: 1e8, many small ones, -1e8."""
    values = np.full(5000, 0.25, np.float32)
    values[0], values[-1] = 1e8, -1e8
    return np.asarray(np.tile(values, (2, 1)))


CASES = [
    *(
        case(op, floats(*shape), axes, keep, f"over {'.'.join(map(str, axes))}{' keep' * keep}")
        for op in FLOAT_OPS
        for shape, axes in SHAPES
        for keep in ((False, True) if len(shape) == 2 else (False,))
    ),
    *(
        case(op, ints(*shape), axes, False, f"int over {'.'.join(map(str, axes))}")
        for op in INT_OPS
        for shape, axes in SHAPES[1:12]
    ),
    *(case(op, edge_rows(), (1,), False, "edges") for op in FLOAT_OPS),
    *(case(op, np.ascontiguousarray(edge_rows().T), (0,), False, "edges") for op in FLOAT_OPS),
    *(case(op, hard_sum(), (1,), False, "cancels") for op in FLOAT_OPS),
    *(case(op, floats(3, 0), (1,), False, "of nothing") for op in ("reduce_sum", "reduce_mean")),
    *(case(op, floats(0, 3), (1,), False, "no result") for op in FLOAT_OPS),
    *(
        # the largest last, where a loop that ends early does not come
        Case(
            op,
            (np.arange(2_200_000, dtype=np.float32).reshape(1, -1),),
            {"axes": (1,), "keepdims": False},
            "parts",
            large=True,
        )
        for op in FLOAT_OPS
    ),
    case("reduce_sum", ints(3, 0), (1,), False, "int of nothing"),
    case("reduce_sum", np.full((2, 3), 2**31 - 1, np.int32), (1,), False, "wraps"),
    case("reduce_max", np.array([[-(2**31), -(2**31)]], np.int32), (1,), False, "least"),
    case("reduce_min", np.array([[2**31 - 1, 2**31 - 1]], np.int32), (1,), False, "most"),
]

ERRORS = [
    ErrorCase(lambda: vs.reduce_max(vs.input("x", (3, 0)), 1), vs.ShapeError, "expected values"),
    ErrorCase(lambda: vs.reduce_min(vs.input("x", (0,))), vs.ShapeError, "expected values"),
    ErrorCase(lambda: vs.reduce_sum(vs.input("x", (3, 2)), 2), vs.ShapeError, "axis in -2..1"),
    ErrorCase(lambda: vs.reduce_sum(vs.input("x", (3, 2)), (1, -1)), vs.ShapeError, "distinct"),
    ErrorCase(lambda: vs.reduce_mean(vs.input("x", (3,), "int32")), vs.DTypeError, "cast"),
    ErrorCase(lambda: vs.reduce_sum(vs.input("x", (3,), "bool")), vs.DTypeError, "cast"),
]
