"""Ops without data operands: constants, ranges, random numbers, states."""

from __future__ import annotations

from . import sharding as sharding
from . import state as state
