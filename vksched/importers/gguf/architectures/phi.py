"""Phi 3 and 3.5: merged QKV weights, and merged gate and up weights. The file has separate rotary
factors for long texts. Phi 3.5 MoE has layer norms, and experts that SparseMixer chooses.

Source: https://arxiv.org/abs/2404.14219
"""

from __future__ import annotations

from .family import Family
from .sparse_mixer import sparse_mixer

PHI3 = Family(joined=("attn_qkv", "ffn_up"))
PHI_MOE = Family(layer_norms=True, router=sparse_mixer)
