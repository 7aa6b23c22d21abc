"""Attention sinks: a learned logit for each query head that takes part in the softmax without a
value.

A sink is implemented as the first key, whose value is 0. Queries get one more element, the sink
logit of their head; the sink's key has a 1 there, all other keys a 0.
"""

from __future__ import annotations

import numpy as np

from ....ir.tensor import Tensor, constant
from ....ops import concat, expand, reshape, zeros

SINK_ELEMENTS = 4
"""The number of added elements of queries and keys; rows stay multiples of vec4."""


def widened(q: Tensor, k: Tensor, sinks: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return queries and keys extended for sinks. q: (b, heads, n, d), k: (b, kv_heads, n, d),
    sinks: (heads,), scale: the scale of attention scores.
    """
    b, heads, n, _ = q.shape
    own = expand(reshape(sinks * (1 / scale), (1, heads, 1, 1)), (b, heads, n, 1))
    q = concat([q, own, zeros((b, heads, n, SINK_ELEMENTS - 1))], axis=3)
    return q, concat([k, zeros((*k.shape[:3], SINK_ELEMENTS))], axis=3)


def after_sink(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with those of the sink first. k: extended by `widened`."""
    key = np.zeros((*k.shape[:2], 1, k.shape[3]), np.float32)
    key[..., -SINK_ELEMENTS] = 1
    none = zeros((*v.shape[:2], 1, v.shape[3]))
    return concat([constant(key), k], axis=2), concat([none, v], axis=2)
