"""Attention with and without a KV cache, its gradient, and rotary embeddings."""

from __future__ import annotations

from . import sharding as sharding
from . import vjp_rules as vjp_rules
