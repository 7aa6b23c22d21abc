"""Ops that move elements and compute nothing: layout, index, pad, scatter."""

from __future__ import annotations

from . import gradients as gradients
from . import sharding as sharding
