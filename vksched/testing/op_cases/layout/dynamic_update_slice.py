"""Samples of dynamic_update_slice: any axis, starts per batch, rows out of range, empty updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ..op_sample import ErrorSample, OpSample, bools, floats, ints

Shape = tuple[int, ...]


def write(
    data: NDArray, many: int, start: int | tuple[int, ...], axis: int = 0, name: str = ""
) -> OpSample:
    """Return a write of `many` rows from a start on, or from one start per batch."""
    shape = (*data.shape[:axis], many, *data.shape[axis + 1 :])
    rows = (bools if data.dtype.kind == "b" else ints if data.dtype.kind in "iu" else floats)(
        *shape, seed=3
    ).astype(data.dtype)
    inputs = (data, rows, np.asarray(start, np.int32))
    return OpSample(
        "dynamic_update_slice",
        inputs,
        {"axis": axis},
        f"{data.dtype} {start} {axis} {name}".strip(),
    )


def in_slots(
    data: NDArray,
    many: int,
    starts: tuple[int, ...],
    slots: tuple[int, ...],
    axis: int,
    name: str = "",
) -> OpSample:
    """Return a write of `many` rows of each example, into slots of the data."""
    case = write(data, many, 0, axis)
    rows = np.resize(case.inputs[1], (len(slots), *case.inputs[1].shape[1:]))
    where = np.stack([np.asarray(each, np.int32) for each in (starts, slots)], axis=1)
    name = f"{data.dtype} {starts} {axis} in slots {slots} {name}".strip()
    return replace(case, inputs=(data, rows, where), name=name)


def _rounded(case: OpSample) -> OpSample:
    """Return a case of float16 with rows of float32."""
    data, rows, start = case.inputs
    return replace(case, inputs=(data, rows.astype(np.float32) * np.float32(1.001), start))


def _beyond(case: OpSample) -> OpSample:
    """Return a case of float32 rows for float16, some beyond its range, which become NaN."""
    data, rows, start = case.inputs
    large = rows.astype(np.float32)
    edges = np.array([7e4, -65520, 65519, -1e30, np.inf], np.float32)
    large.reshape(-1)[::3] = np.resize(edges, -(-rows.size // 3))
    attrs = {**case.attrs, "overflow_nan": True}
    return replace(case, inputs=(data, large, start), attrs=attrs)


_PLACES: list[tuple[Shape, int, int, int]] = [  # data, rows, start, axis
    ((1,), 1, 0, 0),
    ((7,), 2, 3, 0),
    ((13, 7), 1, 12, 0),
    ((13, 7), 5, 2, 1),
    ((71, 73), 31, 40, 0),
    ((1, 3, 509, 8), 1, 300, 2),
    ((2, 3, 5, 64), 4, 1, 2),
    ((2, 3, 2, 3, 2, 3, 2, 3), 2, 1, 5),
    ((3, 100_003), 1, 1, 0),
]
CASES: list[OpSample] = [
    write(floats(*shape), many, start, axis) for shape, many, start, axis in _PLACES
]
CASES += [
    write(floats(3, 7, 5), 2, (0, 3, 5), 1),
    write(floats(3, 4, 7, 6), 2, (5, -1, 100), 2, "some outside"),
    *(
        write(floats(9, 5), 4, start, name="outside")
        for start in (-2, -4, 7, 9, 2**31 - 1, -(2**31), 2**31 - 3)
    ),
    write(floats(3, 5), 7, -2, name="more rows than there are"),
    write(floats(3, 5), 0, 1, name="no row"),
    write(floats(0, 5), 2, 0, name="of nothing"),
    write(floats(5, 0), 2, 0, name="no column"),
    write(floats(0, 4, 2), 2, (), 1, name="no batch"),
    *(write(x, 2, 3, 1) for x in (ints(5, 6, 4), ints(5, 6, 4).astype(np.uint32), bools(5, 6, 4))),
    *(write(floats(4, 7, size).astype(np.float16), 2, 3, 1) for size in (8, 3)),
    *(
        write(floats(*shape).astype(np.float16), many, start, axis, name="odd")
        for shape, many, start, axis in (
            ((1,), 1, 0, 0),
            ((7,), 2, 3, 0),
            ((13, 7), 5, 2, 1),
            ((13, 7), 4, 5, 1),
            ((3, 5, 7), 5, 0, 1),
            ((3, 5, 7), 9, -2, 1),
            ((509, 1, 1), 1, 0, 1),
            ((509, 1, 3), 1, 0, 1),
            ((1, 3, 509, 5), 7, 300, 2),
            ((3, 7, 5), 2, (0, 3, 5), 1),
            ((3, 4, 7, 5), 2, (5, -1, 100), 2),
            ((71, 73), 31, 40, 0),
        )
    ),
    *(
        _rounded(write(floats(*shape).astype(np.float16), many, start, axis, name="rounded"))
        for shape, many, start, axis in (
            ((1, 2, 70, 64), 1, 33, 2),
            ((1, 2, 70, 64), 3, 69, 2),
            ((3, 4, 7, 5), 2, (5, -1, 100), 2),
            ((71, 73), 31, 40, 0),
        )
    ),
    *(
        _beyond(write(floats(*shape).astype(np.float16), many, start, axis, name="beyond"))
        for shape, many, start, axis in (
            ((1, 2, 70, 64), 1, 33, 2),
            ((3, 4, 7, 5), 2, (5, -1, 100), 2),
            ((71, 73), 31, 40, 0),
        )
    ),
    *(
        change(in_slots(floats(*shape).astype(dtype), many, starts, slots, axis, name))
        for dtype, change, name in (
            *((np.float32, lambda case: case, ""), (np.float16, lambda case: case, "")),
            *((np.float16, _rounded, "rounded"), (np.float16, _beyond, "beyond")),
        )
        for shape, many, starts, slots, axis in (
            ((5, 2, 70, 64), 1, (33, 0), (4, 1), 2),
            ((3, 4, 7, 5), 2, (5, -1, 3), (2, 0, 9), 2),
            ((4, 3, 7, 3), 7, (0, 0), (3, 2), 2),
            ((4, 7, 3), 3, (2,), (1,), 1),
            ((2, 7, 3), 7, (0, 0, 0), (-1, 1, 0), 1),
            ((2, 3, 8, 3), 1, (2, 3, 4, 6), (1, 1, 1, 0), 2),
        )
    ),
    write(np.arange(20, dtype=np.int64).reshape(5, 4), 2, 3),
]
_DATA, _ROWS = (4, 5, 6), (4, 2, 6)


def _build(rows: Shape, start: Shape = (), axis: int = 1, dtype: str = "int32") -> Tensor:
    operands = input("data", _DATA), input("rows", rows), input("start", start, dtype)
    return ops.dynamic_update_slice(*operands, axis=axis)


ERRORS: list[ErrorSample] = [
    ErrorSample(lambda: _build((4, 2, 5)), ShapeError, "but for axis 1"),
    ErrorSample(lambda: _build((2, 6)), ShapeError, "but for axis 1"),
    ErrorSample(lambda: _build(_ROWS, (3,)), ShapeError, "one start"),
    ErrorSample(lambda: _build((2, 5, 6), (4,), 0), ShapeError, "one start"),
    ErrorSample(lambda: _build((3, 2, 6), (4, 2)), ShapeError, "one start"),
    ErrorSample(lambda: _build(_ROWS, (4, 3)), ShapeError, "one start"),
    ErrorSample(
        lambda: ops.dynamic_update_slice(
            *(input("data", _DATA), input("rows", _ROWS), input("start", (4,), "int32")),
            axis=1,
            slots=input("slots", (3,), "int32"),
        ),
        ShapeError,
        "a slot for each example",
    ),
    ErrorSample(lambda: _build(_ROWS, (), 1, "float32"), DTypeError, "int32 or int64"),
    ErrorSample(
        lambda: ops.dynamic_update_slice(input("d", (3,)), input("r", (1,), "int32"), 0),
        DTypeError,
        "expected float32 rows",
    ),
    ErrorSample(
        lambda: ops.dynamic_update_slice(input("d", (3,)), input("r", (1,)), 2**31),
        DTypeError,
        "fit int32",
    ),
    ErrorSample(
        lambda: ops.dynamic_update_slice(input("d", ()), input("r", ()), 0), ShapeError, "axes"
    ),
]
