"""Draws of ops that change no value: any type and shape."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes

TYPES = ("float32", "float16", "int32", "bool")


def _drawn(pick: Pick, dtype: str | None = None) -> NDArray:
    return array(pick, dtype or pick(st.sampled_from(TYPES)), pick(shapes(8, 5)))


def _optimization_barrier(pick: Pick) -> OpSample:
    return OpSample("optimization_barrier", (_drawn(pick), _drawn(pick)), exact=True)


def _stop(pick: Pick) -> OpSample:
    return OpSample("stop_gradient", (_drawn(pick),), exact=True)


DRAWS: dict[str, Draw] = {"optimization_barrier": _optimization_barrier, "stop_gradient": _stop}
