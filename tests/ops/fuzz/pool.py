"""Draws of the pools."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from vksched.testing.op_cases.conv.conv import call
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array
from .conv import spatial, window


def _dtype(pick: Pick, op: str) -> str:
    return str(pick(st.sampled_from(["float32", "int32"] if "max" in op else ["float32"])))


def _sliding(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        axes = pick(st.integers(1, 3))
        more: dict[str, Any] = window(pick, axes)
        more["kernel"] = tuple(pick(st.integers(1, 5 - axes)) for _ in range(axes))
        more["ceil_mode"] = pick(st.booleans())
        if op == "average_pool":
            more["count_include_pad"] = pick(st.booleans())
        if op == "lp_pool":
            more["p"] = pick(st.sampled_from([1, 2, 3]))
        lead = (pick(st.integers(0, 3)), pick(st.integers(1, 5)))
        x = (*lead, *spatial(pick, more, more["kernel"]))
        return call(op, (array(pick, _dtype(pick, op), x),), "draw", **more)

    return draw


def _adaptive(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        axes = pick(st.integers(1, 3))
        shape = tuple(pick(st.integers(1, 9)) for _ in range(2 + axes))
        sizes = tuple(pick(st.integers(0 if i else 2, 9)) for i in range(axes))
        return call(op, (array(pick, _dtype(pick, op), shape),), "draw", sizes=sizes)

    return draw


DRAWS: dict[str, Draw] = {
    **{op: _sliding(op) for op in ("max_pool", "max_pool_indices", "average_pool", "lp_pool")},
    **{op: _adaptive(op) for op in ("adaptive_max_pool", "adaptive_average_pool")},
}
