"""Draws of the elementwise ops."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.cases.case import Case
from vksched.cases.elementwise import binary_sample, tolerance, unary_sample
from vksched.ops.elementwise import BINARY, UNARY

from .common import Draw, Pick, broadcasting, shapes


def _unary(op: str) -> Draw:
    dtypes = [dtype for name, dtype in UNARY if name == op]

    def draw(pick: Pick) -> Case:
        dtype = pick(st.sampled_from(dtypes))
        return Case(op, (unary_sample(op, dtype, *pick(shapes())),), nmse=tolerance(op))

    return draw


def _binary(op: str) -> Draw:
    dtypes = [dtype for name, dtype in BINARY if name == op]

    def draw(pick: Pick) -> Case:
        dtype = pick(st.sampled_from(dtypes))
        a, b = broadcasting(pick, 2)
        left = binary_sample(op, dtype, *a)
        return Case(op, (left, binary_sample(op, dtype, *b, seed=1)), nmse=tolerance(op))

    return draw


DRAWS: dict[str, Draw] = {
    **{op: _unary(op) for op, _ in UNARY},
    **{op: _binary(op) for op, _ in BINARY},
}
