"""Draws of padding."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _pad(pick: Pick) -> OpSample:
    dtype = pick(st.sampled_from(("float32", "int32", "bool")))
    x = array(pick, dtype, pick(shapes()))
    begins = tuple(pick(st.integers(-size, 3)) for size in x.shape)
    ends = tuple(pick(st.integers(-size - min(b, 0), 3)) for size, b in zip(x.shape, begins))  # noqa: B905
    value = x.dtype.type(pick(st.integers(0, 5))).item()
    return OpSample("pad", (x,), {"begins": begins, "ends": ends, "value": value})


DRAWS: dict[str, Draw] = {"pad": _pad}
