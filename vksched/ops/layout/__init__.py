"""Data movement ops: layout, indexing, padding, scatter."""

from __future__ import annotations

from . import gradients as gradients
from . import sharding as sharding
