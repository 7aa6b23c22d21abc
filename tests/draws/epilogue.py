"""Draws of what follows a product or convolution in its kernel."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.cases.case import Case
from vksched.cases.chain import step
from vksched.cases.epilogue import behind
from vksched.ops.chain import Step
from vksched.ops.epilogue import takes_residual

from .common import Pick

ONE = ("relu", "tanh", "silu", "hard_swish")


def followed(pick: Pick, case: Case) -> Case:
    """The call alone, or with up to four steps behind it, which may read a residual."""
    made = case.result_type()
    if made.dtype not in ("float32", "float16") or not made.size or pick(st.booleans()):
        return case
    residual = takes_residual(case.op, made) and pick(st.booleans())
    first = 2 + residual  # behind the constant
    steps: list[Step] = []
    for number in range(pick(st.integers(1, 4))):
        last = first + number - 1 if number else 0
        if pick(st.booleans()):
            steps.append(step(pick(st.sampled_from(ONE)), last))
        else:
            other = pick(st.integers(0, first - 1))
            steps.append(step(pick(st.sampled_from(("add", "mul"))), last, other))
    return behind(case, steps, (0.75,), residual)
