"""BERT and models with its architecture: MiniLM, BGE, E5, XLM-RoBERTa. They are encoders for
embeddings, and for scores of rerankers.

nomic-bert has rotary embeddings, a gated feed-forward and no biases; nomic-bert-moe has experts in
every second layer instead of the gate. Jina 3 has rotary embeddings; Jina 2 has ALiBi, and some of
its models have QK-norm and a second norm after attention.

Sources: https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/2402.01613,
https://arxiv.org/abs/2502.07972, https://arxiv.org/abs/2310.19923, https://arxiv.org/abs/2409.10173
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
JINA_BERT_V3 = replace(
    BERT,
    learned_positions=False,
    biases=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    joined=("attn_qkv",),
)
NOMIC_BERT_MOE = JINA_BERT_V3
JINA_BERT_V2 = replace(
    BERT,
    learned_positions=False,
    biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"),
    head_norms="all",
    optional_norms=("attn_q_norm", "attn_k_norm", "attn_norm_2"),
    attention_norms=Norms(sum="attn_output_norm", second_sum="attn_norm_2"),
    optional_gate=True,
)
