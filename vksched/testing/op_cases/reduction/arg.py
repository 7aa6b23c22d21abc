"""Samples of argmax, argmin and nonzero: ties, NaN, any axis, long and short rows."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import input
from ..op_sample import ErrorSample, OpSample, bools, floats, ints
from .reduce import words

OPS = ("argmax", "argmin")


def case(
    op: str,
    x: NDArray,
    axis: int | None,
    name: str = "",
    keepdims: bool = False,
    last: bool = False,
) -> OpSample:
    axes = tuple(range(x.ndim)) if axis is None else (axis,)
    options: dict[str, AttrValue] = {"axes": axes, "keepdims": keepdims, "select_last_index": last}
    label = f"{x.dtype}{'all' if axis is None else axis}{name}{' keep' * keepdims}{' last' * last}"
    return OpSample(op, (x,), options, label)


def edges() -> NDArray:
    """Return rows with NaN, infinities, both zeros, and one value only."""
    rows = np.tile(floats(40), (8, 1))
    rows[0, 3] = rows[0, 35] = np.nan
    rows[1, 3], rows[1, 30], rows[1, 31] = np.inf, -np.inf, np.inf
    rows[2, 39], rows[2, 38] = np.inf, -np.nan
    rows[3, :] = -np.inf
    rows[4, ::2], rows[4, 1::2] = -0.0, 0.0
    rows[5, :] = np.inf
    rows[6, :] = np.nan
    rows[7, 0] = -np.inf
    return rows


EXTREMES = np.array([[-(2**31)] * 3, [2**31 - 1] * 3, [0, 2**31 - 1, -(2**31)]], np.int32)

SHAPES: list[tuple[tuple[int, ...], tuple[int | None, ...]]] = [
    ((), (None,)),
    ((1,), (0, None)),
    ((71,), (0,)),
    ((5, 3), (0, 1, None)),
    ((200, 31), (0, 1, None)),
    ((1000, 4), (0, 1)),
    ((4, 1000), (0, 1)),
    ((7, 103, 5), (0, 1, 2, None)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (4, None)),
    ((2, 60_001), (1,)),
    ((100_003,), (0,)),
    ((3001, 40), (0,)),
    ((303, 196), (0,)),
]

WIDE_ROWS = (290, 1028), (0,)
"""Enough adjacent columns for vec4s of a GPU."""

CASES = [
    *(
        case(op, floats(*shape), axis, "", keep, last)
        for op in OPS
        for shape, axes in SHAPES
        for axis in axes
        for keep in ((False, True) if len(shape) in (0, 2, 3) else (False,))
        for last in ((False, True) if len(shape) == 2 else (False,))
    ),
    *(
        # few different values: ties everywhere
        case(op, ints(*shape, low=-3, high=3), axis, "ties", last=last)
        for op in OPS
        for shape, axes in (*SHAPES[1:], WIDE_ROWS)
        for axis in axes
        for last in (False, True)
    ),
    *(
        case(op, words(*shape), axis, "", last=last)
        for op in OPS
        for shape, axis in (
            *(((1,), 0), ((5, 3), 1), ((200, 31), 0), ((2, 60_001), 1)),
            *(((3001, 40), 0), ((303, 196), 0), ((290, 1028), 0)),
        )
        for last in (False, True)
    ),
    *(
        case(op, array, axis, "edges", last=last)
        for op in OPS
        for array in (edges(), EXTREMES, EXTREMES.view(np.uint32), np.tile(edges(), 50))
        for axis in (0, 1)
        for last in (False, True)
    ),
    *(case(op, floats(0, 3), 1, "empty", keep) for op in OPS for keep in (False, True)),
    *(
        OpSample("nonzero", (x,), {"size": size, "fill_value": fill}, f"{x.dtype} {size} {fill}")
        for x in (ints(7, 5, low=-1, high=2), words(3), bools(3, 4, 5), floats(1), floats(0, 3))
        for size, fill in ((x.size, -1), (4, -1), (x.size + 3, 9), (0, 0))
    ),
    OpSample("nonzero", (bools(),), {"size": 2, "fill_value": -1}),
    OpSample(
        "nonzero", (np.array([np.nan, -0.0, 0, np.inf], np.float32),), {"size": 4, "fill_value": -1}
    ),
]

ERRORS = [
    ErrorSample(lambda: ops.argmax(input("x", (3, 0)), 1), ShapeError, "argmax.* values"),
    ErrorSample(lambda: ops.argmin(input("x", (0,))), ShapeError, "argmin.* values"),
    ErrorSample(lambda: ops.argmax(input("x", (3,)), 1), ShapeError, "axis in -1..0"),
    ErrorSample(lambda: ops.argmin(input("x", (3,), "bool")), DTypeError, "argmin.* got bool"),
    ErrorSample(lambda: ops.nonzero(input("x", (3,)), -1), ShapeError, "size of 0 or more"),
    ErrorSample(lambda: ops.nonzero(input("x", (3,)), 1.5), ShapeError, "integer as size"),  # type: ignore[arg-type]
    ErrorSample(lambda: ops.nonzero(input("x", (3,)), 1, 2**40), ShapeError, "fits 32 bits"),
]
