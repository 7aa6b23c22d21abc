"""GLM 4: interleaved rotary embedding on half of each head, and merged gate and up weights. The
models of 2025 have norms before and after each block; older ones are named chatglm.

Source: https://arxiv.org/abs/2406.12793
"""

from __future__ import annotations

from dataclasses import replace

from .family import Family, Norms

GLM4 = Family(
    interleaved=True,
    joined=("ffn_up",),
    attention_norms=Norms("attn_norm", "post_attention_norm"),
    feed_forward_norms=Norms("ffn_norm", "post_ffw_norm"),
)
CHATGLM = replace(
    GLM4,
    attention_norms=Norms("attn_norm"),
    feed_forward_norms=Norms("ffn_norm"),
)
