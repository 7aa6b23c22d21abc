"""Draws: for every op a rule by which hypothesis draws calls of it."""

from __future__ import annotations

from . import (
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
)
from .common import Draw

FAMILIES = (
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
)
DRAWS: dict[str, Draw] = {}
for _family in FAMILIES:
    DRAWS.update(_family.DRAWS)
