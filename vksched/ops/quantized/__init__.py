"""Linear ops with quantized weights, and mixture-of-experts layers."""

from __future__ import annotations

from . import sharding as sharding
