"""GLM 4: interleaved rotary embedding on half of each head, and merged gate and up weights. The
models of 2025 have norms before and after each block; older ones are named chatglm. GLM 4.5 to 4.7
have experts, and QK-norm in the largest model.

Sources: https://arxiv.org/abs/2406.12793, https://arxiv.org/abs/2508.06471
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
GLM4_MOE = Family(
    head_norms="each",
    optional_norms=("attn_q_norm", "attn_k_norm"),
    feed_forward_norms=Norms("post_attention_norm"),
)
