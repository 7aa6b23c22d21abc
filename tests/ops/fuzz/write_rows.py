"""Draws of dynamic_update_slice."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _dynamic_update_slice(pick: Pick) -> OpSample:
    shape = pick(shapes(4, 6, 1, 1))
    axis = pick(st.integers(0, len(shape) - 1))
    many = pick(st.integers(0, 7))
    batched = axis > 0 and pick(st.booleans())
    count = shape[0] if batched else 1
    start = np.asarray([pick(st.integers(-8, 8)) for _ in range(count)], np.int32)
    dtype = pick(st.sampled_from(("float32", "int32", "float16")))
    lead = shape[:axis]
    if batched and pick(st.booleans()):
        examples = pick(st.integers(1, shape[0]))
        slots = pick(st.permutations(range(-1, shape[0])))[:examples]
        start = np.stack([np.resize(start, examples), np.asarray(slots, np.int32)], axis=1)
        lead = (examples, *lead[1:])
    rows = (*lead, many, *shape[axis + 1 :])
    inputs = (array(pick, dtype, shape), array(pick, dtype, rows))
    return OpSample(
        "dynamic_update_slice", (*inputs, start if batched else start[0]), {"axis": axis}
    )


DRAWS: dict[str, Draw] = {"dynamic_update_slice": _dynamic_update_slice}
