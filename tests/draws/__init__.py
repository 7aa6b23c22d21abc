"""Draws: for every op a rule by which hypothesis draws calls of it."""

from __future__ import annotations

from . import (
    conv,
    elementwise,
    layout,
    matmul,
    norm,
    pad,
    pool,
    resize,
    sample,
    softmax,
)
from .common import Draw

FAMILIES = (
    conv,
    elementwise,
    layout,
    matmul,
    norm,
    pad,
    pool,
    resize,
    sample,
    softmax,
)
DRAWS: dict[str, Draw] = {}
for _family in FAMILIES:
    DRAWS.update(_family.DRAWS)
