"""gpt-oss: attention sinks, sliding windows in every other layer, and experts with biases and
clamped gate and up projections.

Source: https://arxiv.org/abs/2508.10925
"""

from __future__ import annotations

from ....ir.tensor import Tensor
from ....ops import clip, minimum, sigmoid
from .family import Family, Norms

LIMIT = 7.0
SLOPE = 1.702


def _gating(gate: Tensor, up: Tensor) -> Tensor:
    gate = minimum(gate, LIMIT)
    return gate * sigmoid(gate * SLOPE) * (clip(up, -LIMIT, LIMIT) + 1)


GPT_OSS = Family(
    biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"),
    feed_forward_norms=Norms("post_attention_norm"),
    gating=_gating,
    full_every=2,
    sinks="all",
    yarn_rounded=False,
    shifted_experts=True,
)
