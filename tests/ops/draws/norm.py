"""Draws of the norms over rows: shapes, the first axis of a row, scale and shift."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.cases.case import Case
from vksched.ops.core.attrs import AttrValue

from .common import Draw, Pick, array, shapes


def _norm(op: str) -> Draw:
    def draw(pick: Pick) -> Case:
        shape = pick(shapes(5, 9, min_rank=1))
        axis = pick(st.integers(0, len(shape) - 1))
        scaled, shifted = pick(st.booleans()), op == "layer_norm" and pick(st.booleans())
        x = array(pick, "float32", shape)
        rest = [array(pick, "float32", shape[axis:]) for _ in range(scaled + shifted)]
        attrs: dict[str, AttrValue] = {
            "axis": axis,
            "eps": pick(st.sampled_from((1e-5, 1e-2))),
            "kind": op,
            "scaled": scaled,
            "shifted": shifted,
        }
        return Case(op, (x, *rest), attrs)

    return draw


DRAWS: dict[str, Draw] = {op: _norm(op) for op in ("layer_norm", "rms_norm")}
