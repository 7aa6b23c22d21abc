"""Attention in numpy: a reference that iterates over heads, and a batched version.

scores = q @ k^T -> scale, softcap, mask -> exp -> times v, divided by the row's total weight
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from ...common.dtypes import NDArray
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, sum_rows
from ..linalg.matmul_blocks import heads
from .attention_kernels import visible_range

REFERENCE_SCORES = 1 << 22
"""Maximum number of scores that the reference holds at a time."""


def _with_layout(x: NDArray, bshd: int) -> NDArray:
    """Swap (batch, length, heads, size) and (batch, heads, length, size) if `bshd`."""
    return x.swapaxes(1, 2) if bshd else x


def attention_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Compute attention head by head, some rows of its scores at a time."""
    *bshd, result_bshd = attrs.as_ints("is_bshd")
    out = _attend_all((*map(_with_layout, inputs[:3], bshd), *inputs[3:]), attrs)
    return np.ascontiguousarray(_with_layout(out, result_bshd))


def _attend_all(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    q, k, v = inputs[:3]
    shape = (*q.shape[:3], v.shape[3])
    out = np.full(shape, np.nan if attrs.as_bool("fully_masked_is_nan") else 0, q.dtype)
    if out.size == 0 or k.shape[2] == 0:
        return out
    keys, share = k.shape[2], q.shape[1] // k.shape[1]
    mask = np.broadcast_to(inputs[3], (*q.shape[:3], keys)) if len(inputs) > 3 else None
    rows = max(1, REFERENCE_SCORES // keys)
    for batch, head in np.ndindex(*q.shape[:2]):
        for start in range(0, q.shape[2], rows):
            at = (batch, head, slice(start, start + rows))
            of_k = (batch, head // share)
            out[at] = attend(
                q[at], k[of_k], v[of_k], None if mask is None else mask[at], start, attrs
            )
    return out


def attend(
    q: NDArray, k: NDArray, v: NDArray, mask: NDArray | None, start: int, attrs: Attrs
) -> NDArray:
    """Compute one head for rows of q that start at query `start`, against all keys."""
    scores = (q @ k.T) * q.dtype.type(attrs.as_float("scale"))
    if attrs.as_float("softcap"):
        softcap = q.dtype.type(attrs.as_float("softcap"))
        scores = softcap * np.tanh(scores / softcap)
    low, high = visible_range(attrs)
    ahead = np.arange(len(k)) - np.arange(start, start + len(q))[:, None]
    hidden = (ahead < low) | (ahead > high)
    if mask is not None and mask.dtype == bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= np.isneginf(mask)
        scores = scores + mask
    scores[hidden] = -np.inf
    # a NaN score makes the whole row NaN through its own weight
    largest = np.fmax.reduce(scores, axis=1, keepdims=True)
    largest[~(largest > -np.inf)] = 0
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    out = np.asarray(_mix(weights, v) / np.where(total == 0, 1, total), q.dtype)
    if attrs.as_bool("fully_masked_is_nan"):
        out[total[:, 0] == 0] = np.nan
    return out


def _mix(weights: NDArray, v: NDArray) -> NDArray:
    """Return weights @ v, ignoring rows of v with weight 0, even if they are NaN or infinite."""
    odd = np.flatnonzero(~np.isfinite(v).all(axis=1))
    if not odd.size:
        return np.asarray(weights @ v)
    plain = v.copy()
    plain[odd] = 0
    out = np.asarray(weights @ plain)
    for key in odd:
        weight = weights[:, key : key + 1]
        out += np.where(weight == 0, 0, weight * v[key])
    return out


_PLAIN_SCORES = 32
"""Scores of at most this magnitude need no subtraction of the row maximum: exp and its sums stay
well within the range of float32.
"""


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Compute all heads at once if they have few scores, else head by head."""
    *bshd, result_bshd = attrs.as_ints("is_bshd")
    q, k, v = map(_with_layout, inputs[:3], bshd)
    keys, share = k.shape[2], q.shape[1] // max(1, k.shape[1])
    few = 0 < math.prod(q.shape[:3]) * keys <= REFERENCE_SCORES
    if not few or not np.isfinite(v).all():
        out[...] = attention_reference(inputs, attrs)
        return
    # heads that share keys and values are additional rows of one product
    together = (*k.shape[:2], share * q.shape[2])
    scores = np.matmul(q.reshape(*together, q.shape[3]), k.swapaxes(2, 3))
    scores = scores.reshape(*q.shape[:3], keys)
    scores *= q.dtype.type(attrs.as_float("scale"))
    if attrs.as_float("softcap"):
        softcap = q.dtype.type(attrs.as_float("softcap"))
        scores /= softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    if len(inputs) > 3 and inputs[3].dtype != bool:
        scores += inputs[3]
    hidden = masked_keys(attrs, inputs[3:], 0, q.shape[2], keys)
    to_weights(scores, hidden, attrs.as_bool("fully_masked_is_nan"))
    # normalize before the product, because values may be close to the limits of float32
    result = np.matmul(scores.reshape(*together, keys), v)
    _with_layout(out, result_bshd)[...] = result.reshape(*q.shape[:3], v.shape[3])


def to_weights(
    scores: NDArray, hidden: Iterable[NDArray], fully_masked_is_nan: bool = False
) -> None:
    """Replace scores by softmax weights, in place. `hidden` yields masks of the ignored scores."""
    plain = -_PLAIN_SCORES < scores.min() <= scores.max() < _PLAIN_SCORES
    for each in hidden:
        np.copyto(scores, -np.inf, where=each)
    if not plain:
        largest = np.fmax.reduce(scores, axis=-1, keepdims=True)
        largest[~(largest > -np.inf)] = 0
        scores -= largest
    np.exp(scores, out=scores)
    total = sum_rows(scores)
    if not fully_masked_is_nan:
        total[total == 0] = 1
    scores /= total


def masked_keys(
    attrs: Attrs, masks: tuple[NDArray, ...], start: int, rows: int, keys: int
) -> Iterator[NDArray]:
    """Yield masks of the ignored scores: by position, and by the mask operand.

    `start` is the query of the first row.
    """
    low, high = visible_range(attrs)
    if low > 1 - (start + rows) or high < keys - 1 - start:
        ahead = np.arange(keys) - np.arange(start, start + rows)[:, None]
        yield (ahead < low) | (ahead > high)
    for mask in masks:
        yield ~mask if mask.dtype == bool else np.isneginf(mask)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by heads and batch."""
    q_bshd, k_bshd, *_ = attrs.as_ints("is_bshd")
    q, keys = _with_layout(inputs[0], q_bshd), _with_layout(inputs[1], k_bshd).shape[2]
    masks = [np.broadcast_to(mask, (*q.shape[:3], keys)) for mask in inputs[3:]]
    work = (q.size + out.size) * keys
    for own, (some, of_q, _), part in cut_heads(inputs[:3], attrs, out, work):
        yield (*own, *(mask[some, of_q] for mask in masks)), part


def cut_heads(
    inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray, work: float, has_slots: bool = False
) -> Iterator[tuple[tuple[NDArray, ...], tuple[slice, slice, slice], NDArray]]:
    """Yield q, k and v of some heads, their slices, and their part of the result.

    The slices are of the batch, the heads of q and the heads of k. `work` is the number of
    multiply-adds of all heads. has_slots: k and v have slots instead of examples; each part reads
    all of them.
    """
    *bshd, result_bshd = attrs.as_ints("is_bshd")
    q, k, v = map(_with_layout, inputs, bshd)
    target, batch, shared = _with_layout(out, result_bshd), q.shape[0], k.shape[1]
    share = q.shape[1] // shared
    for some, of_k in heads(batch, shared, work):
        of_q = slice(of_k.start * share, of_k.stop * share)
        cached = slice(None) if has_slots else some
        parts = q[some, of_q], k[cached, of_k], v[cached, of_k]
        own = tuple(map(_with_layout, parts, bshd))
        yield own, (some, of_q, of_k), _with_layout(target[some, of_q], result_bshd)


CPU_KERNEL = CpuKernel(_compute, _cut)
