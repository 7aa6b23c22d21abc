"""Draws of the index ops."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.layout.index import picks, tuples
from vksched.testing.op_cases.op_sample import OpSample, ints

from .common import Draw, Pick, array, shapes

DTYPES = ("float32", "int32", "uint32", "bool")


def table(pick: Pick, shape: tuple[int, ...]) -> NDArray:
    return array(pick, pick(st.sampled_from(DTYPES)), shape)


def within(pick: Pick, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Shapes of indices that lie within a shape on every axis but one."""
    return tuple(
        pick(st.integers(0, 9)) if a == axis else pick(st.integers(1, side))
        for a, side in enumerate(shape)
    )


def _indices(pick: Pick, size: int, shape: tuple[int, ...]) -> NDArray:
    wide = np.int64 if pick(st.booleans()) else np.int32
    return picks(size, *shape).astype(wide)


def gather(pick: Pick) -> OpSample:
    shape = pick(shapes(4, min_side=1, min_rank=1))
    axis = pick(st.integers(0, len(shape) - 1))
    where = _indices(pick, shape[axis], pick(shapes(3)))
    return OpSample("gather", (table(pick, shape), where), {"axis": axis})


def gather_elements(pick: Pick) -> OpSample:
    shape = pick(shapes(6, 4, 1, 1))
    axis = pick(st.integers(0, len(shape) - 1))
    where = _indices(pick, shape[axis], within(pick, shape, axis))
    return OpSample("gather_elements", (table(pick, shape), where), {"axis": axis})


def gather_nd(pick: Pick) -> OpSample:
    shape = pick(shapes(5, 4, 1, 1))
    batch = pick(st.integers(0, len(shape) - 1))
    depth = pick(st.integers(1, len(shape) - batch))
    rows = shape[:batch] + pick(shapes(2))
    where = tuples(shape[batch : batch + depth], *rows)
    return OpSample("gather_nd", (table(pick, shape), where), {"batch_dims": batch})


def one_hot(pick: Pick) -> OpSample:
    shape = pick(shapes(4))
    depth, axis = pick(st.integers(0, 9)), pick(st.integers(0, len(shape)))
    where = ints(*shape, low=-12, high=12)
    return OpSample("one_hot", (where, table(pick, (2,))), {"depth": depth, "axis": axis})


DRAWS: dict[str, Draw] = {
    "gather": gather,
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "one_hot": one_hot,
}
