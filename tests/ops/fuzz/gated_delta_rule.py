"""Draws of the gated delta rule."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array


def _gated_delta_rule(pick: Pick) -> OpSample:
    batch, key_heads, share = (pick(st.integers(0, 3)) for _ in range(3))
    tokens, size, columns = (pick(st.integers(low, 40)) for low in (0, 1, 0))
    heads = key_heads * share
    shapes = (
        *((batch, tokens, key_heads, size),) * 2,
        (batch, tokens, heads, columns),
        *((batch, tokens, heads),) * 2,
        (batch, size, heads, columns),
    )
    q, k, v, g, beta, state = (array(pick, "float32", shape) for shape in shapes)
    # keys of length 1 at most and rates of 0 to 1: a state does not grow without end
    k = k / np.maximum(1, np.sqrt(np.square(k).sum(-1, keepdims=True)))
    inputs = (q, k.astype(np.float32), v, -np.abs(g), 1 / (1 + np.abs(beta)), state)
    if pick(st.booleans()):
        decays = -np.abs(array(pick, "float32", (batch, tokens, heads, size)))
        inputs = (*inputs[:3], decays, *inputs[4:])
        if pick(st.booleans()):
            removal = (array(pick, "float32", shapes[0]) for _ in range(2))
            # of length 1 at most, as k
            inputs += tuple(
                (x / np.maximum(1, np.sqrt(np.square(x).sum(-1, keepdims=True)))).astype(np.float32)
                for x in removal
            )
    return OpSample("gated_delta_rule", inputs, nmse=1e-8)


DRAWS: dict[str, Draw] = {"gated_delta_rule": _gated_delta_rule}
