"""Gemma: scaled embeddings. Gemma 2 and 3: norms before and after each block, and sliding-window
layers between layers with full attention. Gemma 4: per-layer embeddings in small models, heads of
two sizes, last layers that share keys and values, and experts in addition to a dense block. Gemma
3n has several residual streams.

Files store the norm weights with 1 added. Gemma 2 has softcaps on scores and logits; Gemma 3 has
QK-norm instead, and another rotary base in layers with a window. The largest model of each scales
scores by the width; it is recognized by its number of layers, 46 and 62. EmbeddingGemma is Gemma 3
without a causal mask, with windows on both sides and dense layers after pooling.

Sources: https://arxiv.org/abs/2403.08295, https://arxiv.org/abs/2408.00118,
https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

from dataclasses import replace

from .family import GELU_TANH, Family, Norms

GEMMA = Family(activation=GELU_TANH, scaled_embedding=True)
GEMMA2 = replace(
    GEMMA,
    attention_norms=Norms(before="attn_norm", after="post_attention_norm"),
    feed_forward_norms=Norms(before="ffn_norm", after="post_ffw_norm"),
    full_every=2,
    scale_by_width=46,
)
GEMMA3 = replace(
    GEMMA2,
    head_norms="each",
    full_every=6,
    window_base=10000.0,
    window_scaled=False,
    scale_by_width=62,
    takes_pictures=True,
)
GEMMA_EMBEDDING = replace(
    GEMMA3, encoder=True, symmetric_window=True, scale_by_width=0, takes_pictures=False
)
GEMMA4 = replace(
    GEMMA3,
    scale_by_width=0,
    unscaled=True,
    normed_values=True,
    expert_branch=True,
    takes_pictures=False,
)
GEMMA3N = replace(GEMMA4, full_every=5, expert_branch=False)
