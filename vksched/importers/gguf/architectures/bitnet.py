"""BitNet b1.58: weights of three values, and a norm before the last linear layer of each block. A
file may store the scale of a weight in a tensor of its own.

Source: https://arxiv.org/abs/2402.17764
"""

from __future__ import annotations

from .family import Family, Norms

BITNET = Family(
    attention_norms=Norms("attn_norm", inner="attn_sub_norm"),
    feed_forward_norms=Norms("ffn_norm", inner="ffn_sub_norm"),
)
