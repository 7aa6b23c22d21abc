"""Mamba 1 and 2: state spaces without attention and feed-forward. Hybrids have attention in a few
layers: Jamba with Mamba 1, Granite 4 and Nemotron-H with Mamba 2. Falcon-H1 has both in each layer.
Nemotron 3 is Nemotron-H with experts, which large models apply to a smaller projection of tokens.

Sources: https://arxiv.org/abs/2312.00752, https://arxiv.org/abs/2405.21060,
https://arxiv.org/abs/2403.19887, https://arxiv.org/abs/2504.03624, https://arxiv.org/abs/2507.22448
"""

from __future__ import annotations

from dataclasses import replace

from .family import Family, Norms, squared_relu
from .llama import GRANITE
from .state_space import Mamba1, Mamba2

MAMBA = Family(mixer=Mamba1())
MAMBA2 = Family(mixer=Mamba2())
GRANITE_HYBRID = replace(GRANITE, mixer=Mamba2(), rotated_if_finetuned=True)
FALCON_H1 = Family(mixer=Mamba2(), mixer_with_attention=True)
JAMBA = Family(mixer=Mamba1(normed=True), unturned_every=1)
NEMOTRON_H = Family(
    mixer=Mamba2(),
    single_block=True,
    unturned_every=1,
    feed_forward_norms=Norms("attn_norm"),
    activation=squared_relu,
    gated=False,
)
