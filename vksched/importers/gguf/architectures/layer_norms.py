"""Networks with layer norms and rotary embeddings: StarCoder 2, CodeShell, StableLM, Orion, Phi 2,
Falcon, GPT-NeoX, Nemotron, Jais 2. Phi 2 and Falcon have parallel attention and
feed-forward blocks with one norm, GPT-NeoX with two.

Sources: https://arxiv.org/abs/2402.19173, https://arxiv.org/abs/2402.17834,
https://arxiv.org/abs/2311.16867, https://arxiv.org/abs/2407.14679, https://arxiv.org/abs/2204.06745
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
CODESHELL = replace(STARCODER2, biases=STARCODER2.biases[3:])
GPT_NEOX = replace(
    STARCODER2,
    biases=("attn_qkv", *STARCODER2.biases[3:]),
    activation=gelu,
    joined=("attn_qkv",),
    parallel=True,
)
JAIS2 = replace(STARCODER2, activation=squared_relu)
