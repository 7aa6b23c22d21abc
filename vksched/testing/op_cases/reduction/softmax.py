"""Samples of softmax and log_softmax: any axis, masks, extreme values."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ..op_sample import ErrorSample, OpSample, bools, floats

OPS = ("softmax", "log_softmax")


def softmax(
    op: str, x: NDArray, axis: int, name: str = "", mask: NDArray | None = None
) -> OpSample:
    inputs = (x,) if mask is None else (x, mask)
    kind = "" if mask is None else f"under {mask.dtype}"
    return OpSample(op, inputs, {"axis": axis}, " ".join(f"axis {axis} {kind} {name}".split()))


def edge_rows() -> NDArray:
    rows = np.tile(floats(40), (5, 1))
    rows[0, 3] = np.nan
    rows[1, 3] = np.inf
    rows[2, :] = -np.inf
    rows[3, 5:] = -np.inf
    return rows


def additive(*shape: int) -> NDArray:
    """Return zeros, ordinary values and minus infinity."""
    mask = floats(*shape, seed=2)
    mask[bools(*shape, seed=3)] = 0
    mask[mask < -1] = -np.inf
    return mask


MASKED = [
    *(((3, 50, 7), axis, mask) for axis in (0, 1, 2) for mask in ((50, 1), (3, 1, 7), (7,), ())),
    *(((2, 3, 5, 70), 3, mask) for mask in ((2, 1, 1, 70), (5, 70), (2, 3, 5, 70), (2, 1, 5, 1))),
    ((2, 2, 3, 2, 2, 3, 2, 5), 7, (2, 1, 3, 2, 2, 1, 2, 5)),
    ((2, 2, 3, 2, 2, 3, 2, 5), 7, (2, 1, 3, 1, 2, 1, 2, 1)),
    ((300, 3), 1, (300, 1)),
    ((1, 20000), 1, (20000,)),
    ((0, 3), 1, (3,)),
]
CASES = [
    *(softmax(op, floats(*s), 0) for op in OPS for s in ((1,), (7,), (1000,), (20000,))),
    *(softmax(op, floats(3, 50, 7), axis) for op in OPS for axis in (0, 1, 2)),
    *(softmax(op, floats(300, 3), axis) for op in OPS for axis in (0, 1)),
    *(softmax(op, floats(2, 1, 2, 3, 2, 1, 2, 3), axis) for op in OPS for axis in (0, 3, 7)),
    *(softmax(op, floats(*s), 1) for op in OPS for s in ((2100, 32), (9, 1024))),
    *(softmax(op, floats(4, 33, scale=1000), 1, "huge") for op in OPS),
    *(softmax(op, np.full((2, 50), 3e38, np.float32), 1, "largest") for op in OPS),
    *(softmax(op, edge_rows(), 1, "edges") for op in OPS),
    *(softmax(op, np.ascontiguousarray(edge_rows().T), 0, "edges") for op in OPS),
    *(softmax(op, floats(1, 60000), 1, "long") for op in OPS),
    *(softmax(op, floats(0, 3), 1, "no rows") for op in OPS),
    *(softmax(op, floats(3, 0), 1, "no columns") for op in OPS),
    softmax("log_softmax", np.asarray([[1e4, 1e4 + 1, -1e4, 1e30]], np.float32), 1, "far apart"),
    softmax("log_softmax", np.asarray([[0.0, 50.0, 90.0, 120.0]], np.float32), 1, "tiny"),
    *(
        softmax(op, floats(*shape), axis, mask=make(*mask))
        for op in OPS
        for shape, axis, mask in MASKED
        for make in (bools, additive)
    ),
    *(
        softmax(op, edge_rows(), 1, "edges", mask)
        for op in OPS
        for mask in (np.asarray([[True], [False], [True], [True], [False]]), additive(40))
    ),
    *(softmax(op, edge_rows(), 1, "left out", np.zeros((5, 1), bool)) for op in OPS),
]


def x() -> Tensor:
    return input("x", (4, 6))


def whole() -> Tensor:
    return input("i", (4, 6), "int32")


ERRORS = [
    ErrorSample(lambda: ops.softmax(x(), 2), ShapeError, "axis in -2..1"),
    ErrorSample(lambda: ops.softmax(input("s", ())), ShapeError, "scalar"),
    ErrorSample(lambda: ops.softmax(whole()), DTypeError, "cast"),
    ErrorSample(lambda: ops.log_softmax(x(), -3), ShapeError, "axis in -2..1"),
    ErrorSample(lambda: ops.log_softmax(whole()), DTypeError, "cast"),
    ErrorSample(lambda: ops.softmax(x(), mask=whole()), DTypeError, "mask of bool"),
    ErrorSample(lambda: ops.softmax(x(), mask=np.ones(5, bool)), ShapeError, "broadcast"),
    ErrorSample(lambda: ops.softmax(x(), mask=np.ones((2, 1, 6), bool)), ShapeError, "a mask that"),
]
