"""Samples of scatter ops: repeated indices, long rows, every reduction, empty updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ops.layout.scatter import SCATTER_CODES
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, ints
from .index import bad, picks, tuples
from .layout import sample

Shape = tuple[int, ...]


def elements(
    name: str, data: NDArray, indices: NDArray, updates: NDArray, axis: int, how: str = "none"
) -> OpSample:
    inputs, what = (data, indices, updates), f"{data.dtype}{axis}{how}{name}"
    return OpSample("scatter_elements", inputs, {"axis": axis, "reduction": how}, what)


def nd(name: str, data: NDArray, indices: NDArray, updates: NDArray, how: str = "none") -> OpSample:
    what = f"{data.dtype}{how}{name}"
    return OpSample("scatter_nd", (data, indices, updates), {"reduction": how}, what)


def typed(dtype: str, *shape: int, seed: int = 0) -> NDArray:
    """Return random values of a type; uint32 also beyond int32."""
    if dtype == "uint32":
        return ints(*shape, seed=seed, low=-(2**31), high=2**31 - 1).astype(np.uint32)
    return sample(dtype, shape, seed)


NUMBERS = ("float32", "int32", "uint32")
_SPECIAL = np.asarray([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1, 2], np.float32)
_ELEMENTS: list[tuple[Shape, Shape]] = [  # data, indices: on each axis where they fit
    ((1,), (1,)),
    ((7,), (11,)),
    ((13, 7), (13, 7)),
    ((13, 7), (5, 3)),
    ((71, 73), (71, 73)),
    ((3, 5, 7), (2, 5, 6)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (1, 2, 1, 2, 1, 2, 1, 2)),
]
CASES: list[OpSample] = [
    elements("", floats(*data), picks(data[axis], *shape), floats(*shape, seed=2), axis)
    for data, shape in _ELEMENTS
    for axis in range(len(data))
]
CASES += [
    elements("", typed(t, 5, 7), picks(5, 9, 7), typed(t, 9, 7, seed=2), 0, how)
    for t in NUMBERS
    for how in SCATTER_CODES
]
CASES += [
    elements("", bools(5, 7), picks(7, 5, 9), bools(5, 9, seed=2), 1),
    elements("order", np.zeros(3, np.float32), np.zeros(999, np.int32), floats(999), 0),
    elements("order", floats(3), picks(3, 4999), floats(4999, seed=2), 0, "add"),
    elements("parts", floats(3), picks(3, 40000), floats(40000, seed=2), 0),
    elements("lines", floats(2, 9001), picks(2, 3, 9001), floats(3, 9001, seed=2), 0, "add"),
    elements("none", floats(3, 5), picks(3, 0, 5), floats(0, 5), 0),
    elements("no line", floats(3, 5), picks(3, 3, 0), floats(3, 0), 0),
    elements("of nothing", floats(0, 5), picks(3, 0, 5), floats(0, 5), 0),
    elements("no result", floats(5, 0), picks(5, 3, 0), floats(3, 0), 0),
    elements(
        "wide",
        ints(5).astype(np.int64),
        picks(5, 7).astype(np.int64),
        ints(7).astype(np.int64),
        0,
        "add",
    ),
    elements(
        "half",
        floats(5).astype(np.float16),
        picks(5, 7),
        floats(7, seed=2).astype(np.float16),
        0,
        "add",
    ),
    *(
        elements("special", np.ones(8, np.float32), np.arange(8, dtype=np.int32), _SPECIAL, 0, how)
        for how in SCATTER_CODES
    ),
    *(
        elements(
            "onto special", _SPECIAL, np.arange(8, dtype=np.int32), np.ones(8, np.float32), 0, how
        )
        for how in SCATTER_CODES
    ),
    elements(
        "wraps",
        np.full(2, 2**31 - 1, np.int32),
        np.asarray([0, 0, 1], np.int32),
        np.full(3, 2**31 - 1, np.int32),
        0,
        "add",
    ),
]

CASES += [  # few rows with many updates, concurrent on a GPU
    elements("at once", typed(t, 5, 7), picks(5, 999, 6), typed(t, 999, 6, seed=2), 0, how)
    for t in NUMBERS
    for how in SCATTER_CODES
]
CASES += [
    elements("at once", floats(2, 9, 3), picks(9, 2, 71, 3), floats(2, 71, 3, seed=2), 1),
    elements("at once", bools(5, 7), picks(7, 5, 999), bools(5, 999, seed=2), 1),
]

_UNEVEN = np.minimum(tuples((37,), 401), tuples((37,), 401, seed=5))
_ND: list[tuple[Shape, Shape, int]] = [  # data, rows, depth
    ((1,), (1,), 1),
    ((7,), (), 1),
    ((7,), (11,), 1),
    ((13, 7), (5,), 1),
    ((13, 7), (5,), 2),
    ((71, 73), (2, 3), 1),
    ((3, 5, 7), (31,), 2),
    ((5, 3001), (9,), 1),
    ((2, 3, 2, 1, 2, 3, 2, 3), (5,), 8),
    ((2, 3, 2, 1, 2, 3, 2, 3), (2, 3), 3),
    ((3, 5), (0,), 1),
    ((3, 0), (4,), 1),
]
CASES += [
    nd(
        f"{depth}",
        floats(*data),
        tuples(data[:depth], *rows),
        floats(*rows, *data[depth:], seed=2),
        how,
    )
    for data, rows, depth in _ND
    for how in ("none", "add")
]
CASES += [
    nd("", typed(t, 5, 7), tuples((5,), 9), typed(t, 9, 7, seed=2), how)
    for t in NUMBERS
    for how in SCATTER_CODES
]
CASES += [  # numpy updates whole rows: many targets with one update, few with ten
    replace(nd("wide rows", typed(t, 37, 67), _UNEVEN, typed(t, 401, 67, seed=2), how), exact=True)
    for t in NUMBERS
    for how in SCATTER_CODES
]
CASES += [
    nd("at once", typed(t, 5, 7), tuples((5,), 499), typed(t, 499, 7, seed=2), how)
    for t in NUMBERS
    for how in SCATTER_CODES
]
CASES += [
    nd("at once", floats(5, 7), tuples((5, 7), 3, 71), floats(3, 71, seed=2)),
    nd("at once", floats(5, 7, 3), tuples((5, 7), 1009), floats(1009, 3, seed=2)),
    nd("", bools(5, 7), tuples((5, 7), 9), bools(9, seed=2)),
    nd("parts", floats(3), tuples((3,), 20000), floats(20000, seed=2)),
    nd("order", floats(3), tuples((3,), 4999), floats(4999, seed=2), "add"),
    nd("half", floats(5, 8).astype(np.float16), tuples((5,), 3), floats(3, 8).astype(np.float16)),
    nd("half", floats(5, 8).astype(np.float16), tuples((5, 8), 3), floats(3).astype(np.float16)),
    nd("half", floats(5).astype(np.float16), tuples((5,), 3), floats(3).astype(np.float16), "max"),
]

FUNCTIONS = [
    FunctionSample(
        "scatter",
        lambda data, indices, updates: ops.scatter(data, indices, updates, 1),
        (floats(5, 7), picks(7, 5, 3), floats(5, 3, seed=2)),
    )
]

_F, _I, _U = ("float32", (3, 5)), ("int32", (2, 5)), ("float32", (2, 5))
ERRORS: list[ErrorSample] = [
    bad("scatter_elements", ShapeError, "got a scalar", ("float32", ()), _I, _U),
    bad("scatter_elements", ShapeError, "expected an axis", _F, _I, _U, axis=2),
    bad("scatter_elements", ShapeError, "every axis but 1", _F, ("int32", (4, 5)), _U, axis=1),
    bad("scatter_elements", ShapeError, "shape of the indices", _F, _I, ("float32", (2, 4))),
    bad("scatter_elements", DTypeError, "int64 indices", _F, _U, _U),
    bad("scatter_elements", DTypeError, "float32 updates", _F, _I, _I),
    bad("scatter_elements", ShapeError, "as reduction", _F, _I, _U, reduction="mean"),
    bad(
        *("scatter_elements", DTypeError, "got bool", ("bool", (3, 5)), _I, ("bool", (2, 5))),
        reduction="add",
    ),
    bad("scatter_nd", ShapeError, "tuples of 1 to 2", _F, ("int32", (2, 3)), _U),
    bad("scatter_nd", ShapeError, "tuples of 1 to 2", _F, ("int32", ()), _U),
    bad("scatter_nd", ShapeError, "updates of shape", _F, ("int32", (2, 1)), _F),
    bad("scatter_nd", DTypeError, "int64 indices", _F, ("bool", (2, 1)), _U),
    bad("scatter_nd", DTypeError, "float32 updates", _F, ("int32", (2, 1)), _I),
    bad("scatter_nd", ShapeError, "as reduction", _F, ("int32", (2, 1)), _U, reduction="sum"),
    bad("scatter", ShapeError, "got a scalar", ("float32", ()), _I, _U),
]
