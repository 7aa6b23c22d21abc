"""Draws of dequantize_linear: any type and shape, scales and zero points along any axis."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.common.dtypes import NARROW
from vksched.testing.op_cases.elementwise.dequantize_linear import packed
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _dequantize_linear(pick: Pick) -> OpSample:
    shape = pick(shapes(8, 5))
    axis = pick(st.integers(0, len(shape) - 1)) if shape else 0
    x = packed(pick(st.sampled_from(NARROW)), *shape, seed=pick(st.integers(0, 99)))
    inputs = [x]
    for dtype in ("int32", "float32"):
        if pick(st.booleans()):
            many = pick(st.booleans()) and bool(shape)
            inputs.append(array(pick, dtype, (shape[axis],) if many else ()))
    return OpSample("dequantize_linear", tuple(inputs), {"axis": axis}, exact=True)


DRAWS: dict[str, Draw] = {"dequantize_linear": _dequantize_linear}
