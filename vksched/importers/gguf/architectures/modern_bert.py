"""Encoders with the blocks of later decoders: ModernBERT, EuroBERT, NeoBERT, and Llama without a
causal mask.

ModernBERT has layer norms without biases, and windows on both sides in two of three layers, with
another rotary base. NeoBERT's files keep queries, keys and values side by side for each head, as
its published code; llama.cpp splits them otherwise.

Sources: https://arxiv.org/abs/2412.13663, https://arxiv.org/abs/2503.05500,
https://arxiv.org/abs/2502.19587
"""

from __future__ import annotations

from dataclasses import replace

from ....ops import gelu, silu
from .family import Family
from .llama import LLAMA

MODERN_BERT = Family(
    encoder=True,
    layer_norms=True,
    shifted_norms=False,
    embedding_norm="token_embd_norm",
    optional_norms=("blk.0.attn_norm",),
    activation=gelu,
    activations=(("gelu", gelu), ("silu", silu)),
    joined=("attn_qkv", "ffn_up"),
    symmetric_window=True,
    window_base=10000.0,
    head_activation=gelu,
)
EUROBERT = Family(encoder=True)
NEO_BERT = Family(
    encoder=True,
    interleaved=True,
    joined=("attn_qkv", "ffn_up"),
    qkv_by_head=True,
    output_norm="enc.output_norm",
)
LLAMA_EMBED = replace(LLAMA, encoder=True)
