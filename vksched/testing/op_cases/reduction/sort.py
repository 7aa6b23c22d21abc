"""Samples of sorting: one chunk and many, any axis, ties, NaN, both directions, top k."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import input
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, ints
from .arg import EXTREMES, edges
from .reduce import words

OPS = ("sort", "argsort")


def case(
    op: str,
    x: NDArray,
    axis: int,
    descending: bool = False,
    count: int | None = None,
    name: str = "",
) -> OpSample:
    first = "" if count is None else f" first {count}"
    label = f"{x.dtype}{axis}{name}{' descending' * descending}{first}"
    attrs: dict[str, AttrValue] = {
        "axis": axis,
        "descending": descending,
        "count": count,
        "kind": op,
    }
    return OpSample(op, (x,), attrs, label)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (0,)),
    ((7,), (0,)),
    ((32,), (0,)),
    ((129,), (0,)),
    ((1000,), (0,)),
    ((5003,), (0,)),
    ((5, 3), (0, 1)),
    ((70, 130), (0, 1)),
    ((3, 257, 5), (0, 1, 2)),
    ((2, 3, 2, 40, 2, 3, 2, 1), (3, 7)),
]

CASES = [
    *(
        case(op, floats(*shape), axis, descending)
        for op in OPS
        for shape, axes in SHAPES
        for axis in axes
        for descending in (False, True)
    ),
    *(
        # few different values: ties everywhere
        case(op, x, axis, descending, count, "ties")
        for op in OPS
        for shape, axis in (((1,), 0), ((1000,), 0), ((70, 130), 0), ((70, 130), 1))
        for x in (ints(*shape, low=-5, high=5), bools(*shape))
        for descending in (False, True)
        for count in (None, shape[axis] // 3)
    ),
    *(
        case(op, make(*shape), axis, descending)
        for op in OPS
        for make in (words, lambda *shape: words(*shape).view(np.int32))
        for shape, axis in (((1000,), 0), ((7, 130), 1))
        for descending in (False, True)
    ),
    *(
        case(op, array, axis, descending, name="edges")
        for op in OPS
        for array in (edges(), EXTREMES, EXTREMES.view(np.uint32), np.tile(edges(), 9))
        for axis in (0, 1)
        for descending in (False, True)
    ),
    *(
        case(op, floats(*shape), axis, descending, count)
        for op in OPS
        for shape, axis, count in (
            *(((5003,), 0, 1), ((5003,), 0, 40), ((5003,), 0, 5002), ((5003,), 0, 0)),
            *(((70, 130), 0, 10), ((3, 257, 5), 1, 3), ((40,), 0, 39)),
        )
        for descending in (False, True)
    ),
    *(case(op, floats(*s), 1, name="empty") for op in OPS for s in ((3, 0), (0, 3), (0, 0, 2))),
]


def top(x: NDArray, k: int, axis: int, largest: bool) -> FunctionSample:
    return FunctionSample(
        "topk", lambda t: ops.topk(t, k, axis, largest), (x,), f"{k} {axis} {int(largest)}"
    )


FUNCTIONS = [
    *(
        top(floats(*shape), k, axis, largest)
        for shape, k, axis in (((7,), 1, -1), ((300,), 5, 0), ((5, 200), 200, 1), ((9, 4), 3, 0))
        for largest in (False, True)
    ),
    top(ints(6, 31, low=-(2**31), high=2**31), 4, 1, True),
    top(ints(6, 31, low=-9, high=9), 20, 1, True),
    top(floats(6, 31), 0, 1, True),
]

ERRORS = [
    ErrorSample(lambda: ops.sort(input("x", (3, 2)), 2), ShapeError, "sort.* axis in -2..1"),
    ErrorSample(lambda: ops.argsort(input("x", ())), ShapeError, "argsort.* scalar"),
    ErrorSample(lambda: ops.topk(input("x", (3,)), 4), ShapeError, "k in 0..3"),
    ErrorSample(lambda: ops.topk(input("x", (3,)), -1), ShapeError, "k in 0..3, got -1"),
    ErrorSample(lambda: ops.topk(input("x", (3,)), 1.5), ShapeError, "integer as k"),  # type: ignore[arg-type]
]
