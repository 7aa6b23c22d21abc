"""Draws of what follows a product or convolution in its kernel."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.ops.elementwise.epilogue import accepts_residual
from vksched.testing.op_cases.conv.epilogue import behind
from vksched.testing.op_cases.op_sample import OpSample

from .chain import draw_steps
from .common import Pick

ONE = ("relu", "tanh", "silu", "hard_swish")


def followed(pick: Pick, case: OpSample) -> OpSample:
    """The call alone, or with up to four steps behind it, which may read a residual."""
    built = case.result_type()
    if built.dtype not in ("float32", "float16") or not built.size or pick(st.booleans()):
        return case
    residual = accepts_residual(case.op, built) and pick(st.booleans())
    steps = draw_steps(pick, 2 + residual, 4, ONE, ("add", "mul"))  # behind the constant
    return behind(case, steps, (0.75,), residual)
