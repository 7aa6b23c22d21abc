"""Samples of cumulative sums and products: any axis, both directions, long rows, rounding, NaN."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import input
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats, ints
from .reduce import edge_rows, hard_sum, words

OPS = ("cumsum", "cumprod")
FLAGS = [(exclusive, reverse) for exclusive in (False, True) for reverse in (False, True)]


def case(
    op: str, x: NDArray, axis: int, exclusive: bool = False, reverse: bool = False, name: str = ""
) -> OpSample:
    attrs: dict[str, AttrValue] = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    label = f"{x.dtype}{axis}{name}{' exclusive' * exclusive}{' reverse' * reverse}"
    # errors of a thousand products accumulate
    return OpSample(op, (x,), attrs, label, nmse=1e-10 if op == "cumsum" else 1e-8)


def ordinary(op: str, *shape: int) -> NDArray:
    """Return normally distributed values; for products scaled to stay in range."""
    values = floats(*shape)
    return np.asarray(np.exp(values * 0.02), np.float32) if op == "cumprod" else values


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (0,)),
    ((7,), (0,)),
    ((257,), (0,)),
    ((5, 3), (0, 1)),
    ((200, 31), (0, 1)),
    ((40, 517), (0, 1)),
    ((3, 5, 7, 2), (0, 1, 2, 3)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (4,)),
]
LONG: list[tuple[tuple[int, ...], int]] = [
    ((100_003,), 0),
    ((2, 30_011), 1),
    ((20_000, 3), 0),
    ((3001, 40), 0),
]
"""Rows that are split into parts, on a GPU or on a CPU driver."""

CASES = [
    *(
        case(op, ordinary(op, *shape), axis, *flags)
        for op in OPS
        for shape, axes in SHAPES
        for axis in axes
        for flags in FLAGS
    ),
    *(
        case(op, make(*shape), axis, *flags)
        for op in OPS
        for make in (ints, words)
        for shape, axis in (((1,), 0), ((5, 3), 0), ((40, 517), 1), ((3, 5, 7), 1))
        for flags in FLAGS[::3]
    ),
    *(
        case("cumsum", floats(*shape), axis, *flags, "long")
        for (shape, axis), flags in zip(LONG, FLAGS, strict=True)
    ),
    *(
        case(op, ints(*shape), axis, *flags, "long")
        for op in OPS
        for (shape, axis), flags in zip(LONG, FLAGS, strict=True)
    ),
    case("cumprod", np.asarray(np.exp(floats(30_011) * 0.001), np.float32), 0, name="long"),
    *(case(op, edge_rows(), 1, *flags, "edges") for op in OPS for flags in FLAGS),
    *(case("cumsum", hard_sum(), 1, *flags, "cancels") for flags in FLAGS),
    *(case("cumsum", np.full(60_000, 0.1, np.float32), 0, *f, "drifts") for f in FLAGS[:2]),
    *(case(op, floats(*s), 1, name="empty") for op in OPS for s in ((3, 0), (0, 3), (0, 0, 2))),
    case("cumsum", np.full((2, 3), 2**31 - 1, np.int32), 1, name="wraps"),
    case(
        "cumprod",
        np.array([[1e-30, 1e-30, 1e30, 1e30, 2], [-1e30, 1e30, 0, 1e-30, np.inf]], np.float32),
        1,
        name="beyond the range",
    ),
]

ERRORS = [
    ErrorSample(lambda: ops.cumsum(input("x", (3, 2)), 2), ShapeError, "cumsum.* axis in -2..1"),
    ErrorSample(lambda: ops.cumprod(input("x", ()), 0), ShapeError, "cumprod.* scalar"),
    ErrorSample(lambda: ops.cumsum(input("x", (3,), "bool"), 0), DTypeError, "cumsum.* got bool"),
]

FUNCTIONS = [
    FunctionSample("cumsum", ops.cumsum, (floats(3, 5),), "flat"),
    FunctionSample("cumsum", ops.cumsum, (floats(2, 0),), "flat"),
    FunctionSample("cumprod", ops.cumprod, (floats(),), "flat"),
]
