"""Linear ops whose weights are quantized, and mixtures of experts."""

from __future__ import annotations

from . import sharding as sharding
