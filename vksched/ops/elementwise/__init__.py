"""Elementwise ops with their operand types, builders, gradients and sharding rules."""

from __future__ import annotations

from . import gradients as gradients
from .activation import *  # noqa: F403
from .binary import *  # noqa: F403
from .dequantize_linear import *  # noqa: F403
from .pointwise import binary_types, unary_types
from .select import *  # noqa: F403
from .select import CASTS as CASTS
from .unary import *  # noqa: F403

from . import sharding as sharding  # isort: skip - needs the op declarations above

UNARY: tuple[tuple[str, str], ...] = tuple(unary_types)
BINARY: tuple[tuple[str, str], ...] = tuple(binary_types)
