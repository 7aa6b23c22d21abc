"""BERT and models with its architecture: MiniLM, BGE, E5; nomic-bert with rotary embeddings, gated
feed-forward and no biases. They are encoders for embeddings.

Sources: https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/2402.01613
"""

from __future__ import annotations

from dataclasses import replace

from ....ops import gelu, silu
from .family import Family, Norms

BERT = Family(
    encoder=True,
    learned_positions=True,
    token_types=True,
    embedding_norm="token_embd_norm",
    output_norm="",
    biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"),
    layer_norms=True,
    attention_norms=Norms(sum="attn_output_norm"),
    feed_forward_norms=Norms(sum="layer_output_norm"),
    activation=gelu,
    gated=False,
)
NOMIC_BERT = replace(
    BERT, learned_positions=False, biases=(), activation=silu, gated=True, joined=("attn_qkv",)
)
