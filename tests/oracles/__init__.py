"""Oracles: for every op and function another library's answer, none sharing code with ours."""

from __future__ import annotations

from . import (
    channel_norm,
    conv,
    elementwise,
    index,
    layout,
    matmul,
    norm,
    pad,
    pool,
    reduce,
    resize,
    sample,
    softmax,
)
from .common import FunctionOracle, Oracle

FAMILIES = (
    channel_norm,
    conv,
    elementwise,
    index,
    layout,
    matmul,
    norm,
    pad,
    pool,
    reduce,
    resize,
    sample,
    softmax,
)
ORACLES: dict[str, Oracle] = {}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {}
for _family in FAMILIES:
    ORACLES.update(getattr(_family, "ORACLES", {}))
    FUNCTION_ORACLES.update(getattr(_family, "FUNCTION_ORACLES", {}))
