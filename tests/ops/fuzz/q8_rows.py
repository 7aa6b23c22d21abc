"""Draws of rows in q8_0."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.ops.attention.kv_q8_0 import pack_q8_0
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _to(pick: Pick) -> OpSample:
    shape = (*pick(shapes(3, 5)), pick(st.integers(0, 140)))
    return OpSample("quantize_q8_0", (array(pick, "float32", shape),), exact=True)


def _from(pick: Pick) -> OpSample:
    (x,) = _to(pick).inputs
    return OpSample("dequantize_q8_0", (pack_q8_0(x),), {"columns": x.shape[-1]}, exact=True)


DRAWS: dict[str, Draw] = {"quantize_q8_0": _to, "dequantize_q8_0": _from}
