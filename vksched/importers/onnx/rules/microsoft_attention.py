"""Rules for attention and rotary positions of the com.microsoft domain."""

from __future__ import annotations

import math

import numpy as np

from ....ops import (
    arange,
    attention,
    broadcast_to,
    cast,
    clip,
    concat,
    greater_equal,
    less,
    logical_and,
    matmul,
    pad,
    reshape,
    rms_norm,
    stack,
    take_along_axis,
    transpose,
    where,
)
from ....ops import slice as slice_
from ....ops.core.tensor import Tensor, constant
from ....types import BOOL, numpy_dtype
from ..nodes.node import NodeContext
from .heads import both, join_heads, narrow, number_of, rotate, seen, split_heads
from .registry import MICROSOFT, rule


def _scale(n: NodeContext, depth: int) -> float:
    return float(n.attr("scale", 0.0)) or 1 / math.sqrt(depth)


def _filtered(n: NodeContext, valid: Tensor, like: Tensor) -> Tensor:
    """Returns the numbers to add to scores. They push hidden keys far down, but not to -inf."""
    low = number_of(n.attr("mask_filter_value", -10000.0), like)
    return where(valid, number_of(0.0, like), low)


def _padding_mask(n: NodeContext, index: int, like: Tensor, keys: int) -> Tensor | None:
    """Returns the mask of keys that are padding: (batch,) lengths, (2 * batch,) ends and starts,
    (batch, keys) or (batch, queries, keys) with 0 where hidden.
    """
    if not n.has(index):
        return None
    given, batch = narrow(n.tensor(index)), like.shape[0]
    if given.rank == 1:
        n.require(given.shape[0] in (batch, 2 * batch), f"a mask of shape {given.shape}")
        valid = less(arange(keys), reshape(given[:batch], (batch, 1, 1, 1)))
        if given.shape[0] == 2 * batch:
            start = reshape(given[batch:], (batch, 1, 1, 1))
            valid = logical_and(valid, greater_equal(arange(keys), start))
    else:
        n.require(given.rank in (2, 3), f"a mask of shape {given.shape}")
        rows = 1 if given.rank == 2 else given.shape[1]
        valid = cast(reshape(given, (given.shape[0], 1, rows, given.shape[-1])), BOOL)
    return _filtered(n, valid, like)


@rule("Attention", domain=MICROSOFT)
def attention_rule(n: NodeContext) -> list[Tensor | None]:
    """Operands: x, weights, bias, mask, past (k and v), bias of scores."""
    n.require(not n.attr("do_rotary", 0), "rotary positions")
    n.require(not n.attr("past_present_share_buffer", 0), "a shared buffer")
    x, w = n.tensor(0), n.tensor(1)
    heads = n.attr("num_heads")
    widths = n.attr("qkv_hidden_sizes", ()) or (w.shape[1] // 3,) * 3
    made = matmul(x, w, n.optional(2))
    parts, start = [], 0
    for width in widths:
        parts.append(split_heads(slice_(made, start, start + width, 2), heads))
        start += width
    q, k, v = parts
    past, present = 0, None
    if n.has(4):
        before = n.tensor(4)
        past = before.shape[3]
        k, v = concat([before[0], k], 2), concat([before[1], v], 2)
    if n.wants(1):
        present = stack([k, v], 0)
    mask = both(_padding_mask(n, 3, q, k.shape[2]), n.optional(5), q)
    y = attention(
        *(q, k, v, mask),
        causal=bool(n.attr("unidirectional", 0)),
        past=past,
        scale=_scale(n, q.shape[3]),
    )
    return [join_heads(y), present]


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head(n: NodeContext) -> list[Tensor | None]:
    """Operands: q, k, v, bias, padding mask, bias of scores, past k, past v."""
    n.require(not n.has(8) and not n.has(9), "a shared buffer")
    n.require(not n.wants(3), "the scores as a result")
    heads = n.attr("num_heads")
    q, k, v = _multi_head_operands(n, heads)
    past = 0
    if n.has(6):
        past = n.shape(6)[2]
        k, v = concat([n.tensor(6), k], 2), concat([n.tensor(7), v], 2)
    mask = both(_padding_mask(n, 4, q, k.shape[2]), n.optional(5), q)
    y = attention(
        *(q, k, v, mask),
        causal=bool(n.attr("unidirectional", 0)),
        past=past,
        scale=_scale(n, q.shape[3]),
    )
    return [join_heads(y), k, v]


def _multi_head_operands(n: NodeContext, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v as (batch, heads, length, size), which may come packed in one another."""
    query = n.tensor(0)
    if query.rank == 5:  # (batch, length, heads, 3, size)
        q, k, v = (transpose(query[:, :, :, i], (0, 2, 1, 3)) for i in range(3))
        n.require(not n.has(3), "a bias of packed operands")
        return q, k, v
    key = n.tensor(1)
    biases: list[Tensor | None] = [None] * 3
    if n.has(3):
        bias, wide = n.tensor(3), query.shape[2]
        ends = (wide, 2 * wide, bias.shape[0])
        starts = (0, wide, 2 * wide)
        biases = [slice_(bias, a, b, 0) for a, b in zip(starts, ends, strict=True)]
    first = query if biases[0] is None else query + biases[0]
    q = split_heads(first, heads)
    if key.rank == 5:  # (batch, length, heads, 2, size)
        n.require(not n.has(3), "a bias of packed operands")
        k, v = (transpose(key[:, :, :, i], (0, 2, 1, 3)) for i in range(2))
        return q, k, v
    if key.rank == 4:  # as a cache holds them, with their biases
        return q, key, n.tensor(2)
    k, v = (
        split_heads(t if b is None else t + b, heads)
        for t, b in zip((key, n.tensor(2)), biases[1:], strict=True)
    )
    return q, k, v


@rule("RotaryEmbedding", domain=MICROSOFT)
def rotary_rule(n: NodeContext) -> Tensor:
    """Operands: x, positions (or that of the first), the caches of cos and sin."""
    n.require(not n.attr("is_packed_batching", 0), "sequences packed into one")
    n.require(n.attr("scale", 1.0) == 1, "a scale")
    x, cos = n.tensor(0), n.tensor(2)
    joined = x.rank == 3
    if joined:
        heads = n.attr("num_heads", 0) or x.shape[2] // (2 * cos.shape[1])
        x = split_heads(x, heads)
    at = narrow(n.tensor(1))
    if at.rank == 1:
        at = broadcast_to(at + arange(x.shape[2]), (x.shape[0], x.shape[2]))
    turned = rotate(
        *(x, cos, n.tensor(3), at),
        interleaved=bool(n.attr("interleaved", 0)),
        rotary_dim=n.attr("rotary_embedding_dim", 0),
    )
    return join_heads(turned) if joined else turned


# -- grouped queries -----------------------------------------------------------------------------


@rule("GroupQueryAttention", domain=MICROSOFT)
def group_query(n: NodeContext) -> list[Tensor | None]:
    """Operands: q, k, v, past k, past v, the last key's place in each batch, the most keys, caches
    of cos and sin, positions, bias of scores, sinks, scales of caches (2), norms of q and k.

    The past is a buffer of as many keys or more, of which those of each batch come first; new keys
    are put behind them.
    """
    for name in ("k_quant_type", "v_quant_type"):
        n.require(n.attr(name, "NONE") == "NONE", "a quantised cache")
    n.require(not n.attr("sliding_window_cache", 0), "a cache that slides")
    n.require(not n.wants(3), "the scores as a result")
    q, k, v = _grouped_operands(n)
    (batch, heads, queries, depth), total = q.shape, int(n.number(6))
    first = queries == total  # a prompt: nothing before it, what is too long is padding
    counts = narrow(n.tensor(5)) + 1
    past = constant(np.zeros(batch, np.int32)) if first else reshape(counts, (batch,)) - queries
    if n.attr("do_rotary", 0):
        q, k = _turned(n, q, k, past, first)
    one = first or batch == 1
    at = 0 if first else total - queries if batch == 1 else past
    before = [n.optional(3), n.optional(4)]
    presents = [_put(old, new, at, total) for old, new in zip(before, (k, v), strict=True)]
    keys, values = (slice_(t, 0, total, 2) for t in presents)
    window = n.attr("local_window_size", -1)
    left = window - 1 if window > 0 else None
    right = 0 if n.attr("causal", 1) else None
    mask = n.optional(10)
    if mask is not None and mask.shape[-1] != total:
        mask = slice_(mask, 0, total, 3)
    sinks = n.optional(11)
    if n.attr("smooth_softmax", 0) and sinks is None:
        sinks = constant(np.zeros(heads, numpy_dtype(q.dtype)))
    if right is None:
        mask = both(mask, less(arange(total), reshape(counts, (batch, 1, 1, 1))), q)
    if not one or sinks is not None:
        mask = both(mask, seen(n, queries, total, at, left, right), q)
        at, left, right = 0, None, None
    if sinks is not None:
        keys, values, mask = _with_sinks(keys, values, mask, sinks, q)
    assert isinstance(at, int)
    y = attention(
        *(q, keys, values, mask),
        past=at,
        window=(left, right),
        scale=_scale(n, depth),
        softcap=n.attr("softcap", 0.0),
    )
    return [join_heads(y), *presents]


def _grouped_operands(n: NodeContext) -> tuple[Tensor, Tensor, Tensor]:
    heads, shared = n.attr("num_heads"), n.attr("kv_num_heads")
    q = n.tensor(0)
    if n.has(1):
        k, v = n.tensor(1), n.tensor(2)
    else:  # all in one
        size = q.shape[2] // (heads + 2 * shared)
        ends = [0, heads * size, (heads + shared) * size, q.shape[2]]
        q, k, v = (slice_(q, a, b, 2) for a, b in zip(ends, ends[1:], strict=False))
    q, k, v = split_heads(q, heads), split_heads(k, shared), split_heads(v, shared)
    if n.has(14):
        eps = n.attr("qk_norm_epsilon", 1e-6)
        q, k = rms_norm(q, n.tensor(14), eps=eps), rms_norm(k, n.tensor(15), eps=eps)
    return q, k, v


def _turned(
    n: NodeContext, q: Tensor, k: Tensor, past: Tensor, first: bool
) -> tuple[Tensor, Tensor]:
    """Returns q and k turned by their positions: those given, of a prompt only the first one."""
    (batch, _, queries, _), cos, sin = q.shape, n.tensor(7), n.tensor(8)
    steps = arange(queries)
    if n.has(9) and not first:
        at = narrow(n.tensor(9))
    elif n.has(9):
        at = reshape(narrow(n.tensor(9)), (-1,))[:1] + steps
    else:
        at = reshape(past, (batch, 1)) + steps
    at = broadcast_to(at, (batch, queries))
    apart = bool(n.attr("rotary_interleaved", 0))
    turned = [rotate(t, cos, sin, at, apart, 2 * cos.shape[1]) for t in (q, k)]
    return turned[0], turned[1]


def _put(old: Tensor | None, new: Tensor, at: int | Tensor, total: int) -> Tensor:
    """Returns a buffer of `total` keys or more with new ones from a place on, or from one for each
    batch.
    """
    batch, shared, count, size = new.shape
    room = 0 if old is None else old.shape[2]
    length = max(room, total)
    if isinstance(at, int):
        parts = [] if old is None or at == 0 else [slice_(old, 0, at, 2)]
        parts.append(new)
        if old is not None and at + count < length:
            parts.append(slice_(old, at + count, length, 2))
        return concat(parts, 2) if len(parts) > 1 else new
    place = arange(length) - reshape(at, (batch, 1))
    inside = logical_and(greater_equal(place, 0), less(place, count))
    index = reshape(clip(place, 0, max(count - 1, 0)), (batch, 1, length, 1))
    taken = take_along_axis(new, broadcast_to(index, (batch, shared, length, size)), 2)
    if old is None:
        return taken
    filled = pad(old, [(0, 0), (0, 0), (0, length - room), (0, 0)]) if length > room else old
    return where(reshape(inside, (batch, 1, length, 1)), taken, filled)


def _with_sinks(
    keys: Tensor, values: Tensor, mask: Tensor | None, sinks: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds a key of nothing that takes a part of each head's weights."""
    batch, heads, queries, _ = q.shape
    total = keys.shape[2]
    more = [(0, 0), (0, 0), (0, 1), (0, 0)]
    added = number_of(0.0, q) if mask is None else mask
    if added.dtype == BOOL:
        added = where(added, number_of(0.0, q), number_of(-math.inf, q))
    shape = (batch, heads, queries)
    sink = broadcast_to(reshape(sinks, (1, heads, 1, 1)), (*shape, 1))
    whole = concat([broadcast_to(added, (*shape, total)), sink], 3)
    return pad(keys, more), pad(values, more), whole
