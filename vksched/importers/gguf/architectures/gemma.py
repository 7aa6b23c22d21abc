"""Gemma 2 and 3: norms on both sides of each part, layers with a window between those that see all.

Files hold the scales of norms with 1 added. Gemma 2 caps scores and logits; Gemma 3 norms heads
instead, and turns them faster in layers with a window. The largest of each scales scores by the
width: it is known by its number of layers, 46 and 62.

Sources: https://arxiv.org/abs/2408.00118, https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

from .family import GELU_TANH, Family, Norms

_ATTENTION = Norms(before="attn_norm", after="post_attention_norm")
_FEED_FORWARD = Norms(before="ffn_norm", after="post_ffw_norm")

GEMMA2 = Family(
    attention_norms=_ATTENTION,
    feed_forward_norms=_FEED_FORWARD,
    activation=GELU_TANH,
    scaled_embedding=True,
    capped=True,
    full_every=2,
    scale_by_width=46,
)
GEMMA3 = Family(
    head_norms=True,
    attention_norms=_ATTENTION,
    feed_forward_norms=_FEED_FORWARD,
    activation=GELU_TANH,
    scaled_embedding=True,
    full_every=6,
    window_base=10000.0,
    scale_by_width=62,
)
