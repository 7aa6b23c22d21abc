"""Decoders with blocks of other families: PLM has latent attention and a squared ReLU without a
gate; OpenELM has heads and feed-forwards of a size by layer; PLaMo 1 has attention and feed-forward
in parallel, PLaMo 3 norms around each; Maincoder has norms of heads after the rotary embedding.
DeciLM and Nemotron 51B, 49B and 253B are Llama 3 with layers that have a matrix in place of
attention, or lack attention or feed-forward. BLOOM, MPT and Jais 1 are like GPT 2 with ALiBi in
place of learned positions; Jais has a gate.

Sources: https://arxiv.org/abs/2503.12167, https://arxiv.org/abs/2404.14619,
https://arxiv.org/abs/2411.19146, https://arxiv.org/abs/2211.05100,
https://arxiv.org/abs/2308.16149
"""

from __future__ import annotations

from dataclasses import replace

from ....ops import gelu
from .family import Family, Norms, squared_relu
from .gpt2 import GPT2

PLM = Family(interleaved=True, gated=False, activation=squared_relu)
OPENELM = Family(head_norms="each", joined=("attn_qkv",))
PLAMO = Family(parallel=True, feed_forward_norms=Norms("attn_norm"))
PLAMO3 = Family(
    head_norms="each",
    joined=("attn_qkv", "ffn_up"),
    attention_norms=Norms("attn_norm", "post_attention_norm"),
    feed_forward_norms=Norms("ffn_norm", "post_ffw_norm"),
)
DECI = Family(interleaved=True, optional_blocks=True)
MAINCODER = Family(interleaved=True, norms_after_rope=True)
BLOOM = replace(GPT2, learned_positions=False, embedding_norm="token_embd_norm")
MPT = replace(BLOOM, embedding_norm="", biases=(), shifted_norms=False, activation=gelu)
JAIS = Family(
    biases=("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    layer_norms=True,
    joined=("attn_qkv",),
)
