"""Sinks: for each head of queries a score of nothing, which takes its part of what keys weigh.

A sink is the key before all others, and its value is 0. Queries have one more element, the sink of
their head; this key has a 1 there, and the others a 0.
"""

from __future__ import annotations

import numpy as np

from ....ir.tensor import Tensor, constant
from ....ops import concat, expand, reshape, zeros

WIDER = 4
"""Elements that queries and keys have more, so that their rows are still whole vectors of four."""


def widened(q: Tensor, k: Tensor, sinks: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return queries and keys with room for sinks. q: (b, heads, n, d), k: (b, kv_heads, n, d),
    sinks: (heads,), scale: of scores.
    """
    b, heads, n, _ = q.shape
    own = expand(reshape(sinks * (1 / scale), (1, heads, 1, 1)), (b, heads, n, 1))
    q = concat([q, own, zeros((b, heads, n, WIDER - 1))], axis=3)
    return q, concat([k, zeros((*k.shape[:3], WIDER))], axis=3)


def after_sink(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values behind those of the sinks. k: widened."""
    key = np.zeros((*k.shape[:2], 1, k.shape[3]), np.float32)
    key[..., -WIDER] = 1
    none = zeros((*v.shape[:2], 1, v.shape[3]))
    return concat([constant(key), k], axis=2), concat([none, v], axis=2)
