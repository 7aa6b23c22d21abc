"""Llama and models with its architecture: Mistral, TinyLlama, SmolLM, and Mixtral with its experts.
Variants: Mistral 3 (Ministral) with attention temperature scaling; SmolLM 3 with rotary embedding
in three of four layers; Granite and MiniCPM with scale factors; Arcee, Ernie 4.5, Exaone 3,
InternLM 2, XVERSE; Baichuan of 7 B; DeepSeek 1 and Ling with shared experts.

Llama 4 attends within chunks of 8,192 tokens; every fourth layer has full attention and no rotary
embedding. Its models of 128 experts have no QK-norm.

Source: https://arxiv.org/abs/2302.13971
"""

from __future__ import annotations

from dataclasses import replace

from .family import Family, squared_relu

LLAMA = Family(interleaved=True)
EXAONE = Family()
SMOLLM3 = replace(LLAMA, unturned_every=4)
GRANITE = replace(LLAMA, logits_over_scale=True)
ARCEE = replace(LLAMA, gated=False, activation=squared_relu)
LLAMA4 = replace(
    LLAMA,
    head_norms="plain",
    unnormed_experts=128,
    full_every=4,
    chunked=True,
    full_unturned=True,
    tempered="unturned",
    tempered_from=1,
    gated_experts=True,
    shared_expert="added",
)
