"""OLMo 1: layer norms without weights, and bounds of queries, keys and values. OLMo 2 and 3: norms
after each block instead of before it, and QK-norm over all heads. OLMo 3 has sliding windows in
three of four layers, without position scaling. OLMoE has experts. EXAONE 4 has QK-norm for each
head; its layers with full attention have no rotary embedding in models with windows.

Sources: https://arxiv.org/abs/2501.00656, https://arxiv.org/abs/2409.02060,
https://arxiv.org/abs/2507.11407
"""

from __future__ import annotations

from dataclasses import replace

from .family import Family, Norms

OLMO = Family(interleaved=True, norm_weights=False)
OLMO2 = Family(
    head_norms="all",
    attention_norms=Norms(after="post_attention_norm"),
    feed_forward_norms=Norms(after="post_ffw_norm"),
    full_every=4,
    window_scaled=False,
)
OLMOE = Family(head_norms="all")
EXAONE4 = replace(OLMO2, head_norms="each", window_scaled=True, full_unturned=True)
EXAONE_MOE = replace(
    EXAONE4, attention_norms=Norms("attn_norm"), feed_forward_norms=Norms("ffn_norm")
)
