"""SparseMixer: two experts for each token, each with its share of the scores that are close to its
own.

The share of the best expert is softmax over the scores within a relative distance of the best one;
that of the second is the same without the best expert. The two shares have no fixed sum.

Source: https://arxiv.org/abs/2409.12136
"""

from __future__ import annotations

from ....common.dtypes import INT32
from ....ir.tensor import Tensor
from ....ops import (
    abs,
    arange,
    cast,
    concat,
    equal,
    exp,
    logical_not,
    maximum,
    reduce_sum,
    topk,
    where,
)

USED = 2
"""The number of experts of each token."""
DISTANCE = 0.02
"""The largest distance of a close score, relative to the larger magnitude."""


def sparse_mixer(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights and the numbers of two experts, each (rows, 2), from scores (rows,
    experts).
    """
    best, expert_ids = topk(scores, USED)
    is_first = equal(arange(scores.shape[1]), cast(expert_ids[:, :1], INT32))
    shares = []
    for at, allowed in enumerate((None, logical_not(is_first))):
        own = best[:, at : at + 1]
        is_close = own - scores <= DISTANCE * maximum(abs(scores), own)
        is_close = is_close if allowed is None else is_close & allowed
        close = where(is_close, exp(scores - own), 0.0)
        shares.append(1 / reduce_sum(close, -1, keepdims=True))
    return concat(shares, axis=1), expert_ids
