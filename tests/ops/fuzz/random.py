"""Draws of random values: any seed, stream and count gives numpy's bits."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.testing.op_cases.creation.random import OPS, drawn
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, shapes

WORDS = st.integers(-(2**31), 2**31 - 1)


def _draw(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        seed = np.asarray(pick(st.lists(WORDS, min_size=1, max_size=2)), np.int32)
        return drawn(op, seed, pick(shapes()), stream=pick(st.integers(0, 2**64 - 1)))

    return draw


DRAWS: dict[str, Draw] = {op: _draw(op) for op in OPS}
