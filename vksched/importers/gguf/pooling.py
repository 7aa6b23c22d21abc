"""Pooling: one vector of a text, made of those of its tokens."""

from __future__ import annotations

from ...ir.tensor import Tensor
from ...ops import arange, cast, equal, less, lp_normalize, matmul, reshape, squeeze, where

WAYS = ("mean", "cls", "last")
"""The mean of all tokens, the first one, the last one."""


def pooled(hidden: Tensor, counts: Tensor, way: str) -> Tensor:
    """Return a vector of length 1 of each text.

    hidden: (b, n, width), counts: (b,) int32, tokens of each text -> (b, width).
    """
    at, ends = arange(hidden.shape[1]), reshape(counts, (-1, 1))
    if way == "mean":
        shares = where(less(at, ends), 1.0 / cast(ends, "float32"), 0.0)
    else:
        chosen = equal(at, ends - 1 if way == "last" else ends * 0)
        shares = cast(chosen, "float32")
    return lp_normalize(squeeze(matmul(reshape(shares, (-1, 1, at.shape[0])), hidden), 1))
