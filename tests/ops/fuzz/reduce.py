"""Draws of the reductions and of argmax, argmin and nonzero."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.ir.attrs import AttrValue
from vksched.ops.reduction.arg_reduce import ARG_DTYPES
from vksched.ops.reduction.reduce import REDUCTIONS
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_cases.reduction.reduce import TOLERANCE

from .common import Draw, Pick, array, axes_of, shapes


def _reduce(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        shape = pick(shapes(6, 6, int(REDUCTIONS[op].needs_values)))
        x = array(pick, pick(st.sampled_from(REDUCTIONS[op].dtypes)), shape)
        attrs: dict[str, AttrValue] = {
            "axes": axes_of(pick, x.ndim),
            "keepdims": pick(st.booleans()),
        }
        if op == "reduce_var":
            attrs["correction"] = pick(st.sampled_from((0.0, 1.0, 1.5)))
        return OpSample(op, (x,), attrs, nmse=TOLERANCE.get(op, 1e-10))

    return draw


def _arg(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        x = array(pick, pick(st.sampled_from(ARG_DTYPES)), pick(shapes(5, 7, 1)))
        axes = tuple(range(x.ndim))
        if x.ndim and pick(st.booleans()):
            axes = (pick(st.integers(0, x.ndim - 1)),)
        options = {"keepdims": pick(st.booleans()), "select_last_index": pick(st.booleans())}
        return OpSample(op, (x,), {"axes": axes, **options})

    return draw


def nonzero(pick: Pick) -> OpSample:
    x = array(pick, pick(st.sampled_from(("float32", "int32", "bool"))), pick(shapes()))
    size = pick(st.integers(0, x.size + 2))
    return OpSample("nonzero", (x,), {"size": size, "fill_value": pick(st.integers(-2, 2))})


DRAWS: dict[str, Draw] = {
    **{op: _reduce(op) for op in REDUCTIONS},
    **{op: _arg(op) for op in ("argmax", "argmin")},
    "nonzero": nonzero,
}
