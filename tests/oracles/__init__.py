"""Oracles: for every op and function another library's answer, none sharing code with ours."""

from __future__ import annotations

from . import (
    arg,
    channel_norm,
    conv,
    create,
    elementwise,
    index,
    layout,
    matmul,
    norm,
    pad,
    pool,
    random,
    rearrange,
    reduce,
    resize,
    sample,
    scan,
    scatter,
    softmax,
    sort,
)
from .common import FunctionOracle, Oracle

FAMILIES = (
    arg,
    channel_norm,
    conv,
    create,
    elementwise,
    index,
    layout,
    matmul,
    norm,
    pad,
    pool,
    random,
    rearrange,
    reduce,
    resize,
    sample,
    scan,
    scatter,
    softmax,
    sort,
)
ORACLES: dict[str, Oracle] = {}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {}
for _family in FAMILIES:
    ORACLES.update(getattr(_family, "ORACLES", {}))
    FUNCTION_ORACLES.update(getattr(_family, "FUNCTION_ORACLES", {}))
