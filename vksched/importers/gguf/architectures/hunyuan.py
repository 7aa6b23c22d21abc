"""Hunyuan: QK-norm after the rotary embedding; the larger model has experts and a shared expert.

Source: https://arxiv.org/abs/2411.02265
"""

from __future__ import annotations

from .family import Family

HUNYUAN = Family(norms_after_rope=True)
