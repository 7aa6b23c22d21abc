"""Draws of the elementwise ops."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.ops.elementwise import BINARY, CASTS, UNARY
from vksched.testing.op_cases.elementwise.unary import ATTRS, attrs
from vksched.testing.op_cases.op_sample import OpSample, bools, floats
from vksched.testing.op_cases.sample_values import binary_sample, sample, tolerance, unary_sample

from .common import Draw, Pick, broadcasting, shapes

OF_ANY_RANK = {"add", "sub", "mul", "div", "pow", "maximum", "less", "logical_and"}
"""Ops drawn with up to 8 axes; more would make many pipelines of one and the same loop."""


def _unary(op: str) -> Draw:
    dtypes = [dtype for name, dtype in UNARY if name == op]

    def draw(pick: Pick) -> OpSample:
        dtype = pick(st.sampled_from(dtypes))
        values = attrs(op, dtype, pick(st.integers(0, max(0, len(ATTRS.get(op, ())) - 1))))
        return OpSample(op, (unary_sample(op, dtype, *pick(shapes())),), values, nmse=tolerance(op))

    return draw


def _binary(op: str) -> Draw:
    dtypes = [dtype for name, dtype in BINARY if name == op]

    def draw(pick: Pick) -> OpSample:
        dtype = pick(st.sampled_from(dtypes))
        a, b = broadcasting(pick, 2, 8 if op in OF_ANY_RANK else 2)
        left = binary_sample(op, dtype, *a)
        return OpSample(op, (left, binary_sample(op, dtype, *b, seed=1)), nmse=tolerance(op))

    return draw


def _cast(pick: Pick) -> OpSample:
    dtype, to = pick(st.sampled_from(CASTS))
    return OpSample("cast", (sample(dtype, *pick(shapes())),), {"to": to})


def _bitcast(pick: Pick) -> OpSample:
    words = ("int32", "uint32", "float32")
    dtype, to = pick(st.sampled_from(words)), pick(st.sampled_from(words))
    x = np.abs(sample(dtype, *pick(shapes())))  # else a float32 may be a NaN, which keeps no bits
    return OpSample("bitcast", (x,), {"to": to})


def _where(pick: Pick) -> OpSample:
    dtype = pick(st.sampled_from(("float32", "int32", "uint32", "bool")))
    c, a, b = broadcasting(pick, 3)
    return OpSample("where", (bools(*c), sample(dtype, *a), sample(dtype, *b, seed=1)))


def _addcmul(pick: Pick) -> OpSample:
    x, a, b = broadcasting(pick, 3)
    feeds = {"value": pick(st.sampled_from((1.0, -0.5, 0.1)))}
    return OpSample("addcmul", (floats(*x), floats(*a, seed=1), floats(*b, seed=2)), feeds)


DRAWS: dict[str, Draw] = {
    **{op: _unary(op) for op, _ in UNARY},
    **{op: _binary(op) for op, _ in BINARY},
    "cast": _cast,
    "bitcast": _bitcast,
    "where": _where,
    "addcmul": _addcmul,
}
