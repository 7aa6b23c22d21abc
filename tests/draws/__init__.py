"""Draws: for every op a rule by which hypothesis draws calls of it."""

from __future__ import annotations

from . import conv, elementwise, pool
from .common import Draw

FAMILIES = (conv, elementwise, pool)
DRAWS: dict[str, Draw] = {}
for _family in FAMILIES:
    DRAWS.update(_family.DRAWS)
