"""Draws of the layout ops: shapes, orders of axes, slices with any steps, several operands."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes

DTYPES = st.sampled_from(("float32", "int32", "bool", "float16"))


def _reshape(pick: Pick) -> OpSample:
    shape = pick(shapes(8, 3))
    rest, target = math.prod(shape), []
    while rest > 1 and len(target) < 7:
        side = pick(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        target.append(side)
        rest //= side
    if pick(st.booleans()) or rest != 1:
        target.append(-1 if 0 not in (*shape, *target) else rest)
    return OpSample("reshape", (array(pick, pick(DTYPES), shape),), {"shape": tuple(target)})


def _transpose(pick: Pick) -> OpSample:
    shape = pick(shapes(8, 4))
    axes = tuple(pick(st.permutations(range(len(shape)))))
    return OpSample("transpose", (array(pick, pick(DTYPES), shape),), {"axes": axes})


def _slice(pick: Pick) -> OpSample:
    shape = pick(shapes(6, 7, min_rank=1))
    axes = sorted(pick(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    bound, steps = st.integers(-9, 9), st.sampled_from((1, 2, 3, -1, -2))
    attrs = {
        "axes": tuple(axes),
        "starts": tuple(pick(bound) for _ in axes),
        "stops": tuple(pick(st.one_of(st.none(), bound)) for _ in axes),
        "steps": tuple(pick(steps) for _ in axes),
    }
    return OpSample("slice", (array(pick, pick(DTYPES), shape),), attrs)


def _concat(pick: Pick) -> OpSample:
    shape, dtype = list(pick(shapes(6, 4, min_rank=1))), pick(DTYPES)
    axis = pick(st.integers(0, len(shape) - 1))
    parts = []
    for _ in range(pick(st.integers(1, 4))):
        shape[axis] = pick(st.integers(0, 5))
        parts.append(array(pick, dtype, tuple(shape)))
    return OpSample("concat", tuple(parts), {"axis": axis})


def _expand(pick: Pick) -> OpSample:
    target = pick(shapes(8, 3))
    start = pick(st.integers(0, len(target)))
    shape = tuple(1 if pick(st.booleans()) else side for side in target[start:])
    return OpSample("expand", (array(pick, pick(DTYPES), shape),), {"shape": target})


DRAWS: dict[str, Draw] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concat": _concat,
    "expand": _expand,
}
