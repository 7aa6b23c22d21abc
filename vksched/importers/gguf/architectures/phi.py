"""Phi 3 and 3.5: queries, keys and values are one product, gate and up another. For long texts the
file has other factors of rotary positions.

Source: https://arxiv.org/abs/2404.14219
"""

from __future__ import annotations

from .family import Family

PHI3 = Family(joined=("attn_qkv", "ffn_up"))
