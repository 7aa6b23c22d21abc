"""Draws of the norms over rows: shapes, the first axis of a row, scale and shift."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.ir.attrs import AttrValue
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes


def _norm(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
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
        return OpSample(op, (x, *rest), attrs)

    return draw


def _gradient(pick: Pick) -> OpSample:
    norm = _norm(pick(st.sampled_from(("layer_norm", "rms_norm"))))(pick)
    x, scale = norm.inputs[0], norm.inputs[1:2] if norm.attrs["scaled"] else ()
    if x[(0,) * int(norm.attrs["axis"])].size <= 2:  # type: ignore[arg-type]
        x, scale = np.zeros_like(x), ()  # norms of so few are flat elsewhere: all digits cancel
    # the same for a gradient along the row
    g = array(pick, "float32", x.shape) * np.resize(np.float32([1, -2, 0.5, 3, -1]), x.shape)
    attrs = {name: value for name, value in norm.attrs.items() if name != "shifted"}
    attrs["scaled"] = bool(scale)
    return OpSample("layer_norm_backward", (g, x, *scale), attrs)


DRAWS: dict[str, Draw] = {
    **{op: _norm(op) for op in ("layer_norm", "rms_norm")},
    "layer_norm_backward": _gradient,
}
