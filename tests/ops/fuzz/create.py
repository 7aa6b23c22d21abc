"""Draws of creation."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.ir.attrs import AttrValue
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, shapes

NUMBERS = ("float32", "int32", "uint32")


def _number(pick: Pick, dtype: str) -> float:
    """No float so small that a device may take it for 0."""
    number: int = pick(st.integers(-(10**5), 10**5))
    return number / 100 if dtype == "float32" else number


def full(pick: Pick) -> OpSample:
    dtype = pick(st.sampled_from(NUMBERS))
    value: AttrValue = pick(st.integers(0, 2**32 - 1 if dtype == "uint32" else 2**31 - 1))
    if dtype == "float32":
        value = pick(st.floats(width=32, allow_subnormal=False))
    return OpSample("full", (), {"shape": pick(shapes()), "dtype": dtype, "value": value})


def eye(pick: Pick) -> OpSample:
    shape = (pick(st.integers(0, 20)), pick(st.integers(0, 20)))
    attrs = {"shape": shape, "dtype": pick(st.sampled_from(NUMBERS))}
    return OpSample("eye", (), {**attrs, "diagonal": pick(st.integers(-25, 25))})


def arange(pick: Pick) -> OpSample:
    dtype = pick(st.sampled_from(("float32", "int32")))
    start, step = (_number(pick, dtype) for _ in range(2))
    attrs = {"shape": (pick(st.integers(0, 999)),), "dtype": dtype, "start": start, "step": step}
    return OpSample("arange", (), attrs)


def linspace(pick: Pick) -> OpSample:
    count = pick(st.integers(0, 999))
    start, stop = (_number(pick, "float32") for _ in range(2))
    step = (stop - start) / max(1, count - 1)
    attrs = {"start": start, "step": step, "stop": stop, "shape": (count,), "dtype": "float32"}
    return OpSample("linspace", (), attrs)


DRAWS: dict[str, Draw] = {"full": full, "eye": eye, "arange": arange, "linspace": linspace}
