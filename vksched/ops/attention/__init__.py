"""Attention, its gradient, its key-value cache, and rotary embeddings."""

from __future__ import annotations

from . import sharding as sharding
from . import vjp_rules as vjp_rules
