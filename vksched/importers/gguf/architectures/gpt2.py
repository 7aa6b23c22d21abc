"""GPT 2: layer norms, biases everywhere, learned position embeddings, and no gate.

Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019
"""

from __future__ import annotations

from .family import GELU_TANH, Family

GPT2 = Family(
    learned_positions=True,
    biases=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    layer_norms=True,
    activation=GELU_TANH,
    gated=False,
    joined=("attn_qkv",),
)
