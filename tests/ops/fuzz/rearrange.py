"""Draws of rearranging."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, axes_of, shapes

DTYPES = st.sampled_from(("float32", "int32", "bool"))


def roll(pick: Pick) -> OpSample:
    shape = pick(shapes(4, min_side=1))
    axes = axes_of(pick, len(shape))
    shifts = tuple(pick(st.integers(0, shape[a] - 1)) for a in axes)
    return OpSample("roll", (array(pick, pick(DTYPES), shape),), {"axes": axes, "shifts": shifts})


def _triangle(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        shape = pick(shapes(4, 9, min_rank=2))
        return OpSample(op, (array(pick, pick(DTYPES), shape),), {"k": pick(st.integers(-10, 10))})

    return draw


DRAWS: dict[str, Draw] = {"roll": roll, "triu": _triangle("triu"), "tril": _triangle("tril")}
