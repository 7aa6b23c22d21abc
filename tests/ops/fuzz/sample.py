"""Draws of grid_sample."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.conv.sample import KINDS, VOLUMES, sample
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array


def _grid_sample(pick: Pick) -> OpSample:
    dims = pick(st.integers(2, 3))
    kind = pick(st.sampled_from(KINDS if dims == 2 else VOLUMES))
    sides = st.integers(1, 4)
    batch = pick(sides)
    x = array(pick, "float32", (batch, *(pick(sides) for _ in range(dims + 1))))
    grid = array(pick, "float32", (batch, *(pick(sides) for _ in range(dims)), dims))
    return sample(x, grid, *kind)


DRAWS: dict[str, Draw] = {"grid_sample": _grid_sample}
