"""Samples of reductions: any axes, long and short rows, rounding, NaN and infinity, empty."""

from __future__ import annotations

from functools import partial

import numpy as np

from .... import ops
from ....common.dtypes import BOOL, FLOAT32, INT32, NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import input
from ....ops.reduction.reduce import REDUCTIONS
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, fp16_array, ints

FLOAT_OPS = tuple(op for op, row in REDUCTIONS.items() if FLOAT32 in row.dtypes)
INT_OPS = tuple(op for op, row in REDUCTIONS.items() if INT32 in row.dtypes)
BOOL_OPS = tuple(op for op, row in REDUCTIONS.items() if BOOL in row.dtypes)
TOLERANCE = {"reduce_prod": 1e-8}
"""Exceptions from the default: errors of a thousand products accumulate."""

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((), ()), ((1,), (0,)), ((7,), (0,)), ((5, 3), ()), ((5, 3), (0,)), ((5, 3), (1,))),
    *(((4, 1000), (1,)), ((1000, 4), (0,)), ((300, 5, 7), (0, 2)), ((3, 4, 5, 6), (1, 2))),
    *(((20000,), (0,)), ((2, 17000), (1,)), ((200, 31), (1,)), ((70, 33), (0, 1))),
    ((2, 3, 2, 3, 2, 3, 2, 3), (0, 2, 4, 6)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (1, 3, 5, 7)),
    ((2, 1, 3, 1, 2, 1, 2, 40), (0, 1, 2, 4, 7)),
]


def case(
    op: str, x: NDArray, axes: tuple[int, ...], keepdims: bool, name: str, correction: float = 0
) -> OpSample:
    attrs: dict[str, AttrValue] = {"axes": axes, "keepdims": keepdims}
    if op == "reduce_var":
        attrs["correction"] = float(correction)
    return OpSample(op, (x,), attrs, name, TOLERANCE.get(op, 1e-10))


def ordinary(op: str, *shape: int, seed: int = 0) -> NDArray:
    """Return normally distributed values; for products scaled to stay in range."""
    values = floats(*shape, seed=seed)
    return np.asarray(np.exp(values * 0.02), np.float32) if op == "reduce_prod" else values


def edge_rows() -> NDArray:
    """Return rows with NaN, both infinities, one of them, only infinities, and zeros."""
    rows = np.tile(floats(40), (7, 1))
    rows[0, 3] = np.nan
    rows[1, 3], rows[1, 30] = np.inf, -np.inf
    rows[2, 39] = np.inf
    rows[3, :] = -np.inf
    rows[4, :] = 0
    rows[5, 38], rows[5, 39] = np.inf, np.nan
    return rows


def hard_sum() -> NDArray:
    """Return values whose plain float32 sum loses everything: 1e8, many small ones, -1e8."""
    values = np.full(5000, 0.25, np.float32)
    values[0], values[-1] = 1e8, -1e8
    return np.asarray(np.tile(values, (2, 1)))


def far_from_zero() -> NDArray:
    """Return rows with a mean of a thousand to ten million standard deviations, and one that starts
    with an outlier.
    """
    rows = floats(5, 3000).astype(np.float64)
    rows += np.array([[1e3], [-1e5], [1e6], [1e7], [1e6]])
    rows[4, 0] = 0
    return np.asarray(rows, np.float32)


def alternating() -> NDArray:
    """Return rows of alternating 0.9 and -0.9, whose squares always round in one direction."""
    return np.resize(np.array([0.9, -0.9], np.float32), (2, 8192))


def beyond_range() -> NDArray:
    """Return rows whose product exceeds the range of float32 temporarily or finally, or has
    denormals.
    """
    rows = np.ones((7, 60), np.float32)
    rows[0, :7], rows[0, 50:57] = -1e30, -1e-30
    rows[1, :7], rows[1, 50:57] = 1e-30, 1e30
    rows[2, :5] = -1e20
    rows[3, :5] = 1e-20
    rows[4, 20], rows[4, 40] = -1e-42, 1e30
    rows[5, 3:9] = 3.5
    rows[6, 20], rows[6, 40], rows[6, 41] = 1e38, 1e38, np.inf
    return rows


def heavy_tail() -> NDArray:
    """Return values whose exp overflows, or whose sum of exps does."""
    rows = floats(4, 300, scale=3)
    rows[0] += 500
    rows[1] -= 500
    rows[2] = 88
    rows[3] = -1e38
    return rows


def words(*shape: int) -> NDArray:
    """Return uint32 from their whole range."""
    return ints(*shape, low=-(2**31), high=2**31).view(np.uint32)


def coins(*shape: int, hits: int) -> NDArray:
    """Return rows of False with one True at some positions, or the reverse."""
    values = np.full(shape, hits < 0)
    values.reshape(-1)[:: abs(hits)] = hits > 0
    return values


LONG: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((100_003,), (0,)),
    ((2, 60_001), (1,)),
    ((20_000, 3), (0,)),
    ((3001, 40), (0,)),
    ((7, 2003, 5), (1,)),
]
"""Rows that are split into parts, on a GPU or on a CPU driver."""
WIDE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((301, 132), (0,)), ((2, 303, 196), (1,))),
    ((290, 1028), (0,)),
]
"""Many adjacent columns, an odd number of vec4s; in the last entry enough for vec4s of a GPU."""
TALL = (2050, 516)
"""Enough adjacent columns that a CPU driver does not split them, and more rows than where a sum
rounds each time.
"""

CASES = [
    *(
        case(
            op, ordinary(op, *shape), axes, keep, f"over {'.'.join(map(str, axes))}{' keep' * keep}"
        )
        for op in FLOAT_OPS
        for shape, axes in SHAPES
        for keep in ((False, True) if len(shape) == 2 else (False,))
    ),
    *(
        case(op, ordinary(op, *shape, seed=1), axes, False, f"in parts {axes[0]}")
        for op in FLOAT_OPS
        for shape, axes in LONG
        if op != "reduce_prod"
    ),
    *(
        case(op, ordinary(op, *shape, seed=2), axes, False, f"side by side {axes[0]}")
        for op in FLOAT_OPS
        for shape, axes in WIDE
    ),
    *(
        case(op, ints(*shape), axes, False, f"int over {'.'.join(map(str, axes))}")
        for op in INT_OPS
        for shape, axes in [*SHAPES[1:12], *LONG, *WIDE]
    ),
    *(
        case(op, words(*shape), axes, False, f"uint over {'.'.join(map(str, axes))}")
        for op in INT_OPS
        for shape, axes in [*SHAPES[1:10:2], *LONG[:3], *WIDE[1:]]
    ),
    *(
        case(op, coins(*shape, hits=hits), axes, keep, f"{hits} over {'.'.join(map(str, axes))}")
        for op in BOOL_OPS
        for shape, axes, keep in (
            *(((), (), False), ((1,), (0,), False), ((5, 3), (1,), True), ((4, 1000), (1,), False)),
            *(((1000, 4), (0,), False), ((3, 4, 5, 6), (1, 2), False), ((70, 33), (0, 1), True)),
            *(((200, 31), (1,), False), ((100_003,), (0,), False), ((3001, 40), (0,), False)),
            *(((303, 196), (0,), False), ((290, 1028), (0,), False)),
        )
        for hits in (7, -7, 997, -997)
    ),
    *(case(op, bools(3, 0), (1,), False, "of nothing") for op in BOOL_OPS),
    *(case(op, bools(0, 3), (1,), False, "no result") for op in BOOL_OPS),
    *(case(op, edge_rows(), (1,), False, "edges") for op in FLOAT_OPS),
    *(case(op, np.ascontiguousarray(edge_rows().T), (0,), False, "edges") for op in FLOAT_OPS),
    *(case(op, np.tile(edge_rows(), 400), (1,), False, "edges") for op in FLOAT_OPS),
    *(case(op, np.tile(edge_rows().T, (8, 20)), (0,), False, "edges wide") for op in FLOAT_OPS),
    *(
        case(op, x, axes, False, "cancels")
        for op in FLOAT_OPS
        for x, axes in ((hard_sum(), (1,)), (np.tile(hard_sum().T, 64), (0,)))
        if op not in ("reduce_prod", "reduce_sum_square")
    ),
    *(
        case(op, floats(3, 0), (1,), False, "of nothing")
        for op in FLOAT_OPS
        if not REDUCTIONS[op].needs_values
    ),
    *(case(op, floats(0, 3), (1,), False, "no result") for op in FLOAT_OPS),
    *(
        # the largest last, where a loop with an early exit does not arrive
        OpSample(
            op,
            (np.arange(2_200_000, dtype=np.float32).reshape(1, -1),),
            {"axes": (1,), "keepdims": False},
            "parts",
            large=True,
        )
        for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")
    ),
    *(
        case(f"reduce_{kind}", ordinary("", *TALL, seed=3), (0,), False, "tall")
        for kind in ("sum", "max", "logsumexp", "var")
    ),
    case("reduce_var", alternating(), (1,), False, "alternating"),
    case("reduce_var", np.ascontiguousarray(alternating().T), (0,), False, "alternating"),
    case("reduce_sum", ints(3, 0), (1,), False, "int of nothing"),
    case("reduce_prod", ints(3, 0), (1,), False, "int of nothing"),
    case("reduce_sum", np.full((2, 3), 2**31 - 1, np.int32), (1,), False, "wraps"),
    case("reduce_prod", np.full((2, 3), 2**31 - 1, np.int32), (1,), False, "wraps"),
    case("reduce_max", np.array([[-(2**31), -(2**31)]], np.int32), (1,), False, "least"),
    case("reduce_min", np.array([[2**31 - 1, 2**31 - 1]], np.int32), (1,), False, "most"),
    case("reduce_prod", np.array([[0, np.inf], [-0.0, 2]], np.float32), (1,), False, "zero"),
    case("reduce_prod", beyond_range(), (1,), False, "beyond the range"),
    case("reduce_prod", np.ascontiguousarray(beyond_range().T), (0,), False, "beyond the range"),
    case("reduce_logsumexp", heavy_tail(), (1,), False, "heavy tail"),
    case("reduce_logsumexp", heavy_tail(), (0,), True, "heavy tail down"),
    *(
        case("reduce_var", x, (1,), False, f"{name} less {correction}", correction)
        for correction in (0, 1, 2.5)
        for name, x in (
            *(("far from 0", far_from_zero()), ("one", floats(3, 1)), ("two", floats(4, 2))),
            *(("none", floats(3, 0)), ("equal", np.full((2, 500), 1e6, np.float32))),
        )
    ),
    case(
        "reduce_var",
        np.asarray([[3e38, -3e38, 1, 2], [np.inf, 1, 2, 3], [1, np.nan, 3, 3e38]], np.float32),
        (1,),
        False,
        "beyond",
    ),
    case("reduce_var", np.ascontiguousarray(far_from_zero().T), (0,), True, "down", 1),
    case("reduce_var", far_from_zero()[:1].repeat(9, 0), (0, 1), True, "far in parts", 1),
]

ROWS = floats(6, 50)
FP16_ACC = np.full((2, 300), 300.0, np.float16)
"""Their sums are beyond float16."""
FUNCTIONS = [
    FunctionSample("reduce_l2", ops.reduce_l2, (ROWS,), "all"),
    FunctionSample("reduce_l2", lambda x: ops.reduce_l2(x, 1, True), (ROWS,), "1"),
    FunctionSample("reduce_l2", lambda x: ops.reduce_l2(x, 1, True), (edge_rows(),), "1"),
    FunctionSample("reduce_log_sum", ops.reduce_log_sum, (np.abs(ROWS),), "all"),
    FunctionSample("reduce_log_sum", lambda x: ops.reduce_log_sum(x, 1, True), (ROWS,), "1"),
    FunctionSample("reduce_std", ops.reduce_std, (ROWS,), "all"),
    FunctionSample("reduce_std", lambda x: ops.reduce_std(x, 1, True), (far_from_zero(),), "1"),
    FunctionSample("reduce_std", lambda x: ops.reduce_std(x, 1, True, 1), (ROWS,), "1 less 1"),
    *(
        FunctionSample(function, partial(getattr(ops, function), axis=1, keepdims=True), (x,), "1")
        for function in ("reduce_l2", "reduce_std", "reduce_log_sum")
        for x in (fp16_array(5, 51, scale=300.0), fp16_array(5, 52, scale=1e-4), FP16_ACC)
    ),
]

ERRORS = [
    ErrorSample(lambda: ops.reduce_max(input("x", (3, 0)), 1), ShapeError, "expected values"),
    ErrorSample(lambda: ops.reduce_min(input("x", (0,))), ShapeError, "expected values"),
    ErrorSample(lambda: ops.reduce_sum(input("x", (3, 2)), 2), ShapeError, "axis in -2..1"),
    ErrorSample(lambda: ops.reduce_sum(input("x", (3, 2)), (1, -1)), ShapeError, "distinct"),
    ErrorSample(lambda: ops.reduce_mean(input("x", (3,), "int32")), DTypeError, "cast"),
    ErrorSample(lambda: ops.reduce_sum(input("x", (3,), "bool")), DTypeError, "cast"),
    ErrorSample(lambda: ops.reduce_any(input("x", (3,))), DTypeError, "reduce_any.* bool"),
    ErrorSample(lambda: ops.reduce_all(input("x", (3,))), DTypeError, "reduce_all.* bool"),
    ErrorSample(lambda: ops.reduce_l2(input("x", (3,), "int32")), DTypeError, "sum_square"),
    ErrorSample(lambda: ops.reduce_var(input("x", (3,)), correction=-1), DTypeError, "0 or more"),
    ErrorSample(lambda: ops.reduce_std(input("x", (3,)), correction=True), DTypeError, "std"),
]
