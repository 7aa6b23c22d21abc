"""Draws of chains: steps of a few kinds on operands that broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from vksched.ops.elementwise.fused_elementwise import Instr
from vksched.testing.op_cases.elementwise.fused_elementwise import fused_elementwise, step
from vksched.testing.op_cases.op_sample import OpSample, floats

from .common import Draw, Pick, broadcasting

ONE = ("neg", "relu", "tanh", "abs")
TWO = ("add", "sub", "mul", "maximum")


def draw_steps(
    pick: Pick, first: int, most: int, one: Sequence[str] = ONE, two: Sequence[str] = TWO
) -> list[Instr]:
    """Steps that each read the result before. first: the register of the first one's result."""
    steps: list[Instr] = []
    for number in range(pick(st.integers(1, most))):
        last = first + number - 1 if number else 0
        if pick(st.booleans()):
            steps.append(step(pick(st.sampled_from(one)), last))
        else:
            other = pick(st.integers(0, first + number - 1))
            steps.append(step(pick(st.sampled_from(two)), last, other))
    return steps


def _fused_elementwise(pick: Pick) -> OpSample:
    shapes = broadcasting(pick, pick(st.integers(1, 6)), 6)
    shapes[0] = np.broadcast_shapes(*shapes)  # so that all steps have the shape of the result
    inputs = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    steps = draw_steps(pick, len(inputs) + 1, 8)  # behind a constant
    return fused_elementwise(steps, inputs, "drawn", (0.75,))


DRAWS: dict[str, Draw] = {"fused_elementwise": _fused_elementwise}
