"""Products: matmul, linear, einsum, attention, recurrent networks."""

from __future__ import annotations

from . import sharding as sharding
