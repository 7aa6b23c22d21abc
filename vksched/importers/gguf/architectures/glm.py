"""GLM 4: half of each head is turned, in pairs of neighbours, and gate and up are one product. The
models of 2025 have norms on both sides of each part; older ones go by the name chatglm.

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
