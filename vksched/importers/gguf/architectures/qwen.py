"""Qwen 1, 2 and 2.5 with QKV biases; Qwen 3 with QK-norm. Qwen 2 and 3 have mixture-of-experts
variants; that of Qwen 2 has a shared expert. The VL models have M-RoPE for pictures. Seed OSS is
Qwen 2 with another name of a norm. Qwen 3 Next and 3.5 have Gated DeltaNet in three of four layers,
and gated attention in the others.

Sources: https://arxiv.org/abs/2407.10671, https://arxiv.org/abs/2505.09388,
https://arxiv.org/abs/2505.06708
"""

from __future__ import annotations

from dataclasses import replace

from .family import Family, Norms
from .gated_delta_net import GatedDeltaNet

QWEN = Family(joined=("attn_qkv",), biases=("attn_qkv",))
QWEN2 = Family(biases=("attn_q", "attn_k", "attn_v"))
QWEN2_VL = replace(QWEN2, takes_pictures=True, mrope="sections")
QWEN2_MOE = replace(QWEN2, shared_expert="gated")
SEED_OSS = replace(QWEN2, feed_forward_norms=Norms("post_attention_norm"))
QWEN3 = Family(head_norms="each")
QWEN3_VL = replace(QWEN3, takes_pictures=True, mrope="interleaved")
QWEN3_NEXT = replace(
    QWEN3,
    feed_forward_norms=Norms("post_attention_norm"),
    gated_attention="queries",
    shared_expert="gated",
    mixer=GatedDeltaNet(tiled=False),
)
QWEN35 = replace(QWEN3_NEXT, mixer=GatedDeltaNet(tiled=True))
