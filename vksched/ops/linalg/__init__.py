"""Linear algebra: matmul, linear, einsum, int8 products."""

from __future__ import annotations

from . import sharding as sharding
