"""Qwen 2 and 2.5, with biases of queries, keys and values; Qwen 3, with norms of their heads.

Sources: https://arxiv.org/abs/2407.10671, https://arxiv.org/abs/2505.09388
"""

from __future__ import annotations

from .decoder import Decoder

QWEN2 = Decoder(biases=("attn_q", "attn_k", "attn_v"))
QWEN3 = Decoder(head_norms=True)
