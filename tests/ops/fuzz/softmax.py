"""Draws of softmax and log_softmax."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _softmax(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        shape = pick(shapes(min_rank=1))
        inputs = [array(pick, "float32", shape)]
        kind = pick(st.sampled_from(("", "bool", "float32")))
        if kind:
            start = pick(st.integers(0, len(shape)))
            mask = tuple(pick(st.sampled_from((1, side))) for side in shape[start:])
            inputs.append(array(pick, kind, mask))
        axis = pick(st.integers(0, len(shape) - 1))
        return OpSample(op, tuple(inputs), {"axis": axis}, f"axis {axis}")

    return draw


DRAWS: dict[str, Draw] = {op: _softmax(op) for op in ("softmax", "log_softmax")}
