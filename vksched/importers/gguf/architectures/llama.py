"""llama, and what is the same network under its name: Mistral, TinyLlama, SmolLM, and Mixtral with
its experts. Close to it: Mistral 3 (Ministral), whose queries may grow; SmolLM 3, which turns three
of four layers; Granite, with factors of its own; Arcee, Ernie 4.5, Exaone 3.

Llama 4 cuts texts into pieces of 8,192 tokens; each fourth layer sees the whole text, and turns
nothing. Its models of 128 experts have no norms of heads.

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
