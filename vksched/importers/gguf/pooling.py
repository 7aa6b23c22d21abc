"""Pooling: reduces the hidden states of a text's tokens to one vector."""

from __future__ import annotations

from ...ir.tensor import Tensor
from ...ops import arange, cast, equal, less, matmul, reshape, squeeze, where

WAYS = ("mean", "cls", "last")
"""The mean of all tokens, the first token, the last token."""


def pooled(hidden: Tensor, counts: Tensor, way: str) -> Tensor:
    """Return the pooled vector of each text.

    hidden: (b, n, width), counts: (b,) int32, the number of tokens of each text -> (b, width).
    """
    at, ends = arange(hidden.shape[1]), reshape(counts, (-1, 1))
    if way == "mean":
        shares = where(less(at, ends), 1.0 / cast(ends, "float32"), 0.0)
    else:
        chosen = equal(at, ends - 1 if way == "last" else ends * 0)
        shares = cast(chosen, "float32")
    return squeeze(matmul(reshape(shares, (-1, 1, at.shape[0])), hidden), 1)
