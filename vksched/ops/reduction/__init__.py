"""Ops along axes: reductions, norms, softmax, scans, sorting."""

from __future__ import annotations

from . import gradients as gradients
from . import sharding as sharding
