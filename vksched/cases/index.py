"""Cases of the index ops: gather."""

from __future__ import annotations

import numpy as np

import vksched as vs

from ..types import NDArray
from .case import Case, ErrorCase, bools, floats, ints

Shape = tuple[int, ...]


def picks(size: int, *shape: int) -> NDArray:
    """Indices into an axis of a size: all of -size..size-1 occur when there are many."""
    return ints(*shape, seed=1, low=-size, high=size)


def gather(name: str, table: NDArray, indices: NDArray, axis: int) -> Case:
    return Case("gather", (table, indices), {"axis": axis}, f"{table.dtype}{axis}{name}")


_RANK8 = (2, 3, 2, 1, 2, 3, 2, 3)
_SHAPES: list[tuple[Shape, Shape]] = [  # table, indices: on each axis of the table
    ((7,), ()),
    ((7,), (1,)),
    ((1,), (5,)),
    ((5003,), (5003,)),
    ((13, 7), (5,)),
    ((3, 5, 7), ()),
    ((3, 5, 7), (1,)),
    ((3, 5, 7), (11,)),
    ((3, 5, 7), (2, 3)),
    ((3, 5, 7), (2, 1, 3)),
    ((17, 19, 23), (29,)),
    ((2, 3, 2, 3), (2, 3, 2, 2)),
    (_RANK8, (5,)),
    (_RANK8, ()),
]
CASES: list[Case] = [
    gather("", floats(*table), picks(table[axis], *indices), axis)
    for table, indices in _SHAPES
    for axis in range(len(table))
]
CASES += [
    gather(
        "", ints(*table) if dtype == "int32" else bools(*table), picks(table[axis], *indices), axis
    )
    for dtype in ("int32", "bool")
    for table, indices, axis in (
        ((7,), (), 0),
        ((71, 73), (79,), 0),
        ((71, 73), (79,), 1),
        ((3, 5, 7), (2, 3), 1),
        ((5,), (0,), 0),
    )
]
CASES += [
    gather("empty", floats(*table), picks(3, *indices), axis)
    for table, indices, axis in (
        ((3,), (0,), 0),
        ((3, 5), (0,), 0),
        ((5, 3), (2, 0), 1),
        ((0,), (0,), 0),
        ((0, 5), (0, 2), 0),
        ((3, 0), (5,), 0),
        ((0, 3), (5,), 1),
        ((0, 3), (), 1),
    )
]
CASES += [
    gather("embedding", floats(1009, 61), picks(1009, 7, 11), 0),
    gather("wide rows", floats(3, 20011), picks(3, 3), 0),
    gather("to rank 8", floats(3, 2, 3), picks(3, 1, 2, 1, 2, 3, 2), 2),
    gather("one for all", floats(7, 11), np.zeros(5003, np.int32), 1),
    gather("first and last", floats(7, 11), np.asarray([0, 6, -1, -7], np.int32), 0),
    gather("order", ints(257, 3), np.arange(257, dtype=np.int32)[::-1].copy(), 0),
    gather("order from the end", ints(257, 3), np.arange(-257, 0, dtype=np.int32), 0),
    gather(
        "special values",
        np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38], np.float32),
        np.asarray([[4, 3, 5], [2, 1, 0]], np.int32),
        0,
    ),
    gather(
        "int extremes",
        np.asarray([-(2**31), 2**31 - 1, 0, -1], np.int32),
        np.asarray([3, 0, 1, 1, -4], np.int32),
        0,
    ),
]


def refused(
    match: str,
    table: Shape,
    indices: Shape = (2,),
    axis: int = 0,
    dtype: str = "int32",
    error: type[Exception] = vs.ShapeError,
) -> ErrorCase:
    return ErrorCase(
        lambda: vs.gather(vs.input("table", table), vs.input("indices", indices, dtype), axis),
        error,
        match,
    )


ERRORS: list[ErrorCase] = [
    refused("got a scalar", ()),
    refused("expected an axis", (3, 5), axis=2),
    refused("expected an axis", (3, 5), axis=-3),
    refused("rank", (2, 2, 2, 2, 2), (1, 1, 1, 1, 1)),
    refused("int64 indices", (3,), dtype="float32", error=vs.DTypeError),
    refused("int64 indices", (3,), dtype="bool", error=vs.DTypeError),
]
