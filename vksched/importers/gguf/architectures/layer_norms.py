"""Networks with layer norms and rotary embeddings: StarCoder 2, StableLM, Phi 2, Falcon, Nemotron.
Phi 2 and Falcon have parallel attention and feed-forward blocks with one norm.

Sources: https://arxiv.org/abs/2402.19173, https://arxiv.org/abs/2402.17834,
https://arxiv.org/abs/2311.16867, https://arxiv.org/abs/2407.14679
"""

from __future__ import annotations

from dataclasses import replace

from ....ops import gelu
from .family import GELU_TANH, Family, Norms, squared_relu

STABLELM = Family(layer_norms=True)
STARCODER2 = replace(
    STABLELM,
    biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"),
    activation=GELU_TANH,
    gated=False,
)
NEMOTRON = replace(STABLELM, activation=squared_relu, gated=False)
PHI2 = replace(
    STARCODER2,
    biases=(*STARCODER2.biases, "output"),
    feed_forward_norms=Norms("attn_norm"),
    parallel=True,
)
FALCON = replace(PHI2, biases=(), activation=gelu, joined=("attn_qkv",))
