"""Helpers of the attention rules: heads, masks, rotary embedding, intermediate scores."""

from __future__ import annotations

import math

import numpy as np

from ....common.dtypes import BOOL, INT32, INT64, numpy_dtype
from ....ir.tensor import Tensor, constant
from ....ops import (
    arange,
    cast,
    gather,
    greater_equal,
    less_equal,
    logical_and,
    matmul,
    reshape,
    rotary_embedding,
    softmax,
    tanh,
    transpose,
    where,
)
from ..nodes.node import NodeContext


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * size) -> (batch, heads, length, size)."""
    batch, length, width = x.shape
    return transpose(reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, size) -> (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return reshape(transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def narrow(x: Tensor) -> Tensor:
    """Return lengths and positions as int32."""
    return cast(x, INT32) if x.dtype == INT64 else x


def scale_of(n: NodeContext, depth: int) -> float:
    """Return the scale of scores, by default 1 / sqrt(head size)."""
    return float(n.attr("scale", 0.0)) or 1 / math.sqrt(depth)


def number_of(value: float, like: Tensor) -> Tensor:
    """Return a scalar with the dtype of a tensor; as_tensor rejects infinities."""
    return constant(np.array(value, numpy_dtype(like.dtype)))


def seen(
    n: NodeContext,
    queries: int,
    keys: int,
    offset: int | Tensor,
    left: int | None,
    right: int | None,
) -> Tensor:
    """Return the mask of visible keys for each query: from `left` before to `right` after its
    position.

    Parameters
    ----------
    offset
        Position of the first query, or one per batch: (batch,) -> (batch, 1, m, n), else (m, n).
    left, right
        None for no bound.
    """
    if isinstance(offset, int):
        n.require_room((queries, keys), INT32)
        ahead = np.arange(keys) - np.arange(queries)[:, None] - offset
        inside = np.ones(ahead.shape, bool)
        inside &= True if left is None else ahead >= -left
        inside &= True if right is None else ahead <= right
        return constant(inside)
    at = reshape(narrow(offset), (-1, 1, 1, 1)) + reshape(arange(queries), (queries, 1))
    key = arange(keys)
    out = None if right is None else less_equal(key, at + right)
    if left is not None:
        later = greater_equal(key, at - left)
        out = later if out is None else logical_and(out, later)
    return constant(np.ones((), bool)) if out is None else out


def both(a: Tensor | None, b: Tensor | None, like: Tensor) -> Tensor | None:
    """Combine two masks: bools with logical and, additive masks with a sum."""
    if a is None or b is None:
        return b if a is None else a
    if a.dtype == b.dtype == BOOL:
        return logical_and(a, b)
    if a.dtype == BOOL or b.dtype == BOOL:
        condition, added = (a, b) if a.dtype == BOOL else (b, a)
        return where(condition, added, number_of(-math.inf, like))
    return a + b


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    rotary_dim: int,
) -> Tensor:
    """Apply rotary embedding to x (batch, heads, length, size).

    The caches are indexed by positions (batch, length), or already gathered if positions is None.
    """
    caches = [cos, sin]
    if positions is not None:
        caches = [gather(c, positions, 0) for c in caches]
    dims = rotary_dim or None
    return rotary_embedding(x, *caches, interleaved=interleaved, rotary_dim=dims)


def scores_of(
    q: Tensor,
    k: Tensor,
    scale: float,
    softcap: float,
    mask: Tensor | None,
    stage: int,
) -> Tensor:
    """Return scores (batch, heads, queries, keys) after the product (stage 0), the soft cap (1),
    the mask (2) or softmax (3).
    """
    batch, heads, queries, depth = q.shape
    shared = k.shape[1]
    grouped = reshape(q, (batch, shared, heads // shared * queries, depth))
    scores = matmul(grouped, k, transpose_b=True) * scale
    scores = reshape(scores, (batch, heads, queries, k.shape[2]))
    if stage >= 1 and softcap:
        scores = tanh(scores * (1 / softcap)) * softcap
    if stage < 2:
        return scores
    if mask is not None and mask.dtype == BOOL:
        scores = where(mask, scores, number_of(-math.inf, scores))
    elif mask is not None:
        scores = scores + mask
    if stage == 2:
        return scores
    weights = softmax(scores, axis=-1)
    # a row without visible keys has no weights
    return where(scores > number_of(-math.inf, scores), weights, number_of(0.0, scores))
