"""Trinity: gates of attention's output, norms before and after each block, sliding windows in three
of four layers, no rotary embedding in the others, and experts.

Source: https://arxiv.org/abs/2602.17004
"""

from __future__ import annotations

from .family import Family, Norms

AFMOE = Family(
    scaled_embedding=True,
    head_norms="each",
    attention_norms=Norms("attn_norm", "post_attention_norm"),
    feed_forward_norms=Norms("ffn_norm", "post_ffw_norm"),
    full_every=4,
    full_unturned=True,
    gated_attention="input",
)
