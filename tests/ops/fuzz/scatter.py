"""Draws of the scatter ops."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.ops.layout.scatter import SCATTER_CODES
from vksched.testing.op_cases.layout.index import picks, tuples
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes
from .index import within


def _how(pick: Pick) -> tuple[str, str]:
    """A dtype and a reduction of it; few pairs, as each is a pipeline."""
    return pick(
        st.sampled_from(
            [*(("float32", how) for how in SCATTER_CODES), ("int32", "add"), ("uint32", "max")]
        )
    )


def scatter_elements(pick: Pick) -> OpSample:
    shape = pick(shapes(3, 5, 1, 1))
    axis = pick(st.integers(0, len(shape) - 1))
    dtype, how = _how(pick)
    where = picks(shape[axis], *within(pick, shape, axis))
    inputs = (array(pick, dtype, shape), where, array(pick, dtype, where.shape))
    return OpSample("scatter_elements", inputs, {"axis": axis, "reduction": how})


def scatter_nd(pick: Pick) -> OpSample:
    shape = pick(shapes(4, 4, 1, 1))
    depth = pick(st.integers(1, min(2, len(shape))))
    dtype, how = _how(pick)
    where = tuples(shape[:depth], *pick(shapes(2)))
    updates = array(pick, dtype, where.shape[:-1] + shape[depth:])
    return OpSample("scatter_nd", (array(pick, dtype, shape), where, updates), {"reduction": how})


DRAWS: dict[str, Draw] = {"scatter_elements": scatter_elements, "scatter_nd": scatter_nd}
