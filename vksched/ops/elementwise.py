"""The elementwise ops together: which of them take which operand types."""

from __future__ import annotations

from . import activation, binary, select, unary
from .pointwise import binary_types, unary_types
from .select import CASTS

__all__ = ["BINARY", "CASTS", "UNARY", "activation", "binary", "select", "unary"]

UNARY: tuple[tuple[str, str], ...] = tuple(unary_types)
BINARY: tuple[tuple[str, str], ...] = tuple(binary_types)
