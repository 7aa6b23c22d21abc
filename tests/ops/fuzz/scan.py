"""Draws of running sums and products, and of sorting."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.ops.reduction.scan import SCAN_DTYPES
from vksched.ops.reduction.sort import SORT_SHADERS
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _scan(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        shape = pick(shapes(5, 7, min_rank=1))
        x = array(pick, pick(st.sampled_from(SCAN_DTYPES)), shape)
        options = {name: pick(st.booleans()) for name in ("exclusive", "reverse")}
        axis = pick(st.integers(0, x.ndim - 1))
        return OpSample(op, (x,), {"axis": axis, **options}, nmse=1e-10 if op == "cumsum" else 1e-8)

    return draw


def _sort(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        shape = list(pick(shapes(4, 6, min_rank=1)))
        axis = pick(st.integers(0, len(shape) - 1))
        if pick(st.booleans()):
            shape[axis] = pick(st.integers(0, 300))
        x = array(pick, pick(st.sampled_from(sorted(SORT_SHADERS))), tuple(shape))
        count = pick(st.one_of(st.none(), st.integers(0, shape[axis])))
        descending = pick(st.booleans())
        return OpSample(
            op, (x,), {"axis": axis, "descending": descending, "count": count, "kind": op}
        )

    return draw


DRAWS: dict[str, Draw] = {
    **{op: _scan(op) for op in ("cumsum", "cumprod")},
    **{op: _sort(op) for op in ("sort", "argsort")},
}
