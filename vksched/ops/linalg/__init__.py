"""Linear algebra ops: matmul, linear, einsum and int8 matrix products."""

from __future__ import annotations

from . import sharding as sharding
