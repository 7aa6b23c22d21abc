"""Draws of resample."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.conv.resize import resample
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _resample(pick: Pick) -> OpSample:
    x = array(pick, "float32", pick(shapes(min_rank=1, min_side=1)))
    axis = pick(st.integers(0, x.ndim - 1))
    return resample(x, axis, pick(st.integers(0, 9)), pick(st.integers(1, 6)))


DRAWS: dict[str, Draw] = {"resample": _resample}
