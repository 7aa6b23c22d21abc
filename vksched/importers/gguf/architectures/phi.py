"""Phi 3 and 3.5: merged QKV weights, and merged gate and up weights. The file has separate rotary
factors for long texts.

Source: https://arxiv.org/abs/2404.14219
"""

from __future__ import annotations

from .family import Family

PHI3 = Family(joined=("attn_qkv", "ffn_up"))
