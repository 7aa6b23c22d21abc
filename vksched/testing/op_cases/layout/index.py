"""Samples of index ops: gather and its variants, one_hot."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import input
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, ints

Shape = tuple[int, ...]


def picks(size: int, *shape: int) -> NDArray:
    """Return indices into an axis of a size: all of -size..size-1 occur if there are enough."""
    return ints(*shape, seed=1, low=-size, high=size)


def gather(name: str, table: NDArray, indices: NDArray, axis: int) -> OpSample:
    return OpSample("gather", (table, indices), {"axis": axis}, f"{table.dtype}{axis}{name}")


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
CASES: list[OpSample] = [
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


# -- gather_elements -------------------------------------------------------------------------------


def elements(name: str, table: NDArray, indices: NDArray, axis: int) -> OpSample:
    return OpSample(
        "gather_elements", (table, indices), {"axis": axis}, f"{table.dtype}{axis}{name}"
    )


_ELEMENTS: list[tuple[Shape, Shape]] = [  # table, indices: on each axis where they fit
    ((1,), (1,)),
    ((7,), (11,)),
    ((5003,), (5003,)),
    ((13, 7), (13, 7)),
    ((13, 7), (5, 3)),
    ((71, 73), (71, 73)),
    ((3, 5, 7), (3, 5, 7)),
    ((3, 5, 7), (2, 5, 6)),
    (_RANK8, _RANK8),
    ((2, 3, 2, 3, 2, 3, 2, 3), (1, 2, 1, 2, 1, 2, 1, 2)),
]
CASES += [
    elements("", floats(*table), picks(table[axis], *indices), axis)
    for table, indices in _ELEMENTS
    for axis in range(len(table))
]
CASES += [
    elements("more", floats(3, 5, 7), picks(5, 3, 40, 7), 1),
    elements("none", floats(3, 5), picks(3, 0, 5), 0),
    elements("none of many", floats(3, 5), picks(3, 3, 0), 0),
    elements("of nothing", floats(0, 5), picks(3, 0, 5), 0),
    elements("wide", floats(7, 11), picks(7, 7, 11).astype(np.int64), 0),
    elements("", ints(7, 11), picks(11, 7, 11), 1),
    elements("", ints(7, 11, low=0).astype(np.uint32), picks(7, 7, 11), 0),
    elements("", bools(7, 11), picks(7, 7, 11), 0),
    elements("", floats(7, 11).astype(np.float16), picks(7, 7, 11), 0),
]

# -- gather_nd -------------------------------------------------------------------------------------


def tuples(sizes: Shape, *shape: int, seed: int = 1) -> NDArray:
    """Return tuples of indices into axes of these sizes, also negative: (*shape, len(sizes))."""
    parts = [
        ints(*shape, seed=seed + i, low=-size, high=max(size, 1)) for i, size in enumerate(sizes)
    ]
    return np.asarray(np.stack(parts, -1))


def nd(name: str, table: NDArray, indices: NDArray, batch: int = 0) -> OpSample:
    what = f"{table.dtype}{batch}{name}"
    return OpSample("gather_nd", (table, indices), {"batch_dims": batch}, what)


CASES += [
    nd("", floats(*table), tuples(table[batch : batch + depth], *rows), batch)
    for table, rows, depth, batch in (
        ((1,), (1,), 1, 0),
        ((7,), (), 1, 0),
        ((7,), (11,), 1, 0),
        ((13, 7), (5,), 1, 0),
        ((13, 7), (5,), 2, 0),
        ((13, 7), (2, 3), 2, 0),
        ((71, 73), (5003,), 2, 0),
        ((3, 5, 7), (4,), 2, 0),
        ((3, 5, 7), (3, 4), 1, 1),
        ((3, 5, 7), (3,), 2, 1),
        ((3, 5, 7), (3, 5, 2), 1, 2),
        ((2, 3, 4, 5), (2, 3, 6), 1, 2),
        ((17, 19, 23), (29,), 1, 0),
        (_RANK8, (5,), 8, 0),
        (_RANK8, (2, 3, 4), 3, 2),
        (_RANK8, (3,), 1, 0),
        ((3, 5), (0,), 1, 0),
        ((0, 5), (0,), 1, 0),
        ((3, 0), (4,), 1, 0),
    )
]
CASES += [
    nd("", ints(7, 11), tuples((7, 11), 13)),
    nd("", bools(7, 11), tuples((7, 11), 13)),
    nd("wide", ints(7, 11), tuples((7,), 13).astype(np.int64)),
    nd("", ints(7, 11).astype(np.int64), tuples((7,), 13)),
    nd("", floats(7, 11).astype(np.float16), tuples((7,), 13)),
    nd("even", floats(7, 12).astype(np.float16), tuples((7,), 13)),
    nd("even parted", floats(7, 12).astype(np.float16), tuples((7, 12), 13)),
]

# -- one_hot ---------------------------------------------------------------------------------------


def hot(
    name: str, indices: NDArray, depth: int, axis: int, values: NDArray | None = None
) -> OpSample:
    pair = np.asarray([0, 1], np.float32) if values is None else values
    what = f"{pair.dtype}{depth},{axis}{name}"
    return OpSample("one_hot", (indices, pair), {"depth": depth, "axis": axis}, what)


CASES += [
    hot("", ints(*shape, low=-depth - 2, high=depth + 2), depth, axis)
    for shape, depth in (((), 1), ((), 5), ((1,), 7), ((13,), 5), ((71,), 73), ((3, 5), 7))
    for axis in range(len(shape) + 1)
]
CASES += [
    hot("rank 7", ints(2, 3, 1, 2, 1, 2, 3, low=0, high=5), 5, 3),
    hot("no depth", ints(5), 0, 1),
    hot("none", ints(0), 5, 1),
    hot("extremes", np.asarray([-(2**31), 2**31 - 1, 4, -5], np.int32), 5, 0),
    hot("int", picks(5, 7), 5, 1, np.asarray([-3, 9], np.int32)),
    hot("bool", picks(5, 7), 5, 1, np.asarray([True, False])),
    hot("half", picks(5, 7), 5, 1, np.asarray([0.5, 1], np.float16)),
    hot("wide", picks(5, 7).astype(np.int64), 5, 1, np.asarray([0, 1], np.int64)),
]

FUNCTIONS: list[FunctionSample] = [
    FunctionSample("embedding", ops.embedding, (floats(31, 7), picks(31, 3, 5))),
    FunctionSample("one_hot", lambda x: ops.one_hot(x, 5, 2.5, -1, 0), (picks(5, 3, 7),), "floats"),
    *(
        FunctionSample(
            "take_along_axis",
            lambda x, i, axis=axis: ops.take_along_axis(x, i, axis),
            (floats(*table), picks(table[axis], *indices)),
            str(axis),
        )
        for table, indices, axis in (
            ((7,), (3,), 0),
            ((5, 7), (5, 3), -1),
            ((5, 7), (1, 7), 0),
            ((1, 7), (5, 3), 1),
            ((3, 1, 7), (1, 5, 2), 2),
        )
    ),
]


def refused(
    match: str,
    table: Shape,
    indices: Shape = (2,),
    axis: int = 0,
    dtype: str = "int32",
    error: type[Exception] = ShapeError,
) -> ErrorSample:
    return ErrorSample(
        lambda: ops.gather(input("table", table), input("indices", indices, dtype), axis),
        error,
        match,
    )


def bad(
    op: str, error: type[Exception], match: str, *types: tuple[str, Shape], **attrs: object
) -> ErrorSample:
    def build() -> object:
        xs = [input(f"x{i}", shape, dtype) for i, (dtype, shape) in enumerate(types)]
        return getattr(ops, op)(*xs, **attrs)

    return ErrorSample(build, error, match)


_F, _I = ("float32", (3, 5)), ("int32", (3, 5))
ERRORS: list[ErrorSample] = [
    bad("gather_elements", ShapeError, "got a scalar", ("float32", ()), ("int32", ())),
    bad("gather_elements", ShapeError, "expected an axis", _F, _I, axis=2),
    bad("gather_elements", ShapeError, "of rank 2", _F, ("int32", (3,))),
    bad("gather_elements", ShapeError, "every axis but 0", _F, ("int32", (3, 6))),
    bad("gather_elements", DTypeError, "int64 indices", _F, _F),
    bad("take_along_axis", ShapeError, "of one rank", _F, ("int32", (3,))),
    bad("take_along_axis", ShapeError, "that broadcast", _F, ("int32", (2, 5))),
    bad("take_along_axis", ShapeError, "expected an axis", _F, _I, axis=3),
    bad("gather_nd", ShapeError, "got a scalar", _F, ("int32", ())),
    bad("gather_nd", ShapeError, "batch_dims in 0..1", _F, ("int32", (3, 1)), batch_dims=2),
    bad("gather_nd", ShapeError, "as batch_dims, got -1", _F, ("int32", (3, 1)), batch_dims=-1),
    bad("gather_nd", ShapeError, "to be equal", _F, ("int32", (2, 1)), batch_dims=1),
    bad("gather_nd", ShapeError, "tuples of 1 to 2", _F, ("int32", (2, 3))),
    bad("gather_nd", ShapeError, "tuples of 1 to 2", _F, ("int32", (2, 0))),
    bad("gather_nd", DTypeError, "int64 indices", _F, ("bool", (2, 2))),
    bad("embedding", ShapeError, "got a scalar", ("float32", ()), _I),
    bad("one_hot", DTypeError, "int64 indices", _F, depth=3),
    bad("one_hot", ShapeError, "0 or more as depth", _I, depth=-1),
    bad("one_hot", ShapeError, "expected an axis", _I, depth=3, axis=4),
    ErrorSample(
        lambda: ops.one_hot(input("x", (3,), "int32"), 3, 0.5, dtype="int32"),
        DTypeError,
        "values of int32",
    ),
    refused("got a scalar", ()),
    refused("expected an axis", (3, 5), axis=2),
    refused("expected an axis", (3, 5), axis=-3),
    refused("rank", (2, 2, 2, 2, 2), (1, 1, 1, 1, 1)),
    refused("int64 indices", (3,), dtype="float32", error=DTypeError),
    refused("int64 indices", (3,), dtype="bool", error=DTypeError),
]
