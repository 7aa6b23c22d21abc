"""Rules for grouped-query attention with a KV cache of com.microsoft."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from .....common.dtypes import BOOL, INT32, NDArray, numpy_dtype
from .....ir.tensor import Tensor, constant
from .....ops import (
    arange,
    attention,
    broadcast_to,
    cast,
    clip,
    concat,
    gather,
    greater_equal,
    less,
    logical_and,
    minimum,
    pad,
    reshape,
    rms_norm,
    round,
    take_along_axis,
    transpose,
    where,
)
from .....ops import slice as slice_
from ...nodes.elements import PLAIN
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ...nodes.values import Value
from ..attention_heads import (
    both,
    join_heads,
    narrow,
    number_of,
    rotate,
    scale_of,
    scores_of,
    seen,
    split_heads,
)
from ..quantize import shaped
from ..registry import rule


@rule("GroupQueryAttention", types=PLAIN | {TensorProto.INT8}, domain=MICROSOFT)
def group_query(n: NodeContext) -> list[Tensor | Value | None]:
    """Operands: q, k, v, past k, past v, index of the last key per batch, total sequence length,
    cos and sin caches, positions, additive mask, sinks, scales of the KV cache (2), q and k norms,
    number of valid queries per batch.

    The past is a buffer of at least that many keys, left-aligned per batch; new keys are appended.
    """
    n.require(not n.attr("sliding_window_cache", 0), "a cache that slides")
    q, k, v = _grouped_operands(n)
    (batch, heads, queries, depth), total = q.shape, int(n.number(6))
    lengths = narrow(n.tensor(16)) if n.has(16) else None
    # prefill: there is no past, and surplus keys are padding
    first = queries == total and lengths is None
    counts = narrow(n.tensor(5)) + 1
    past = constant(np.zeros(batch, np.int32))
    if not first:
        past = reshape(counts, (batch,)) - (queries if lengths is None else lengths)
    if n.attr("do_rotary", 0):
        q, k = _rotated(n, q, k, past, 7, (9, first))
    one = first or (batch == 1 and lengths is None)
    at = 0 if first else total - queries if one else past
    caches = [_Cache(n, name, 3 + i, 12 + i) for i, name in enumerate("kv")]
    presents = [c.put(t, at, total, lengths) for c, t in zip(caches, (k, v), strict=True)]
    keys, values = (
        cache.floats(slice_(t, 0, total, 2), q) for cache, t in zip(caches, presents, strict=True)
    )
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
    assert isinstance(at, int)
    scores = None
    if n.attr("qk_output", 0) and n.wants(3):
        n.require(sinks is None, "scores of keys and sinks as a result")
        scores = _scores(n, q, keys, mask, seen(n, queries, total, at, left, right))
    if sinks is not None:
        keys, values, mask = _with_sinks(keys, values, mask, sinks, q)
    y = attention(
        *(q, keys, values, mask),
        past_len=at,
        window=(left, right),
        scale=scale_of(n, depth),
        softcap=n.attr("softcap", 0.0),
    )
    return [
        join_heads(y),
        *(cache.value(t) for cache, t in zip(caches, presents, strict=True)),
        *([] if scores is None else [scores]),
    ]


def _scores(n: NodeContext, q: Tensor, keys: Tensor, mask: Tensor | None, inside: Tensor) -> Tensor:
    """Return the scores before softmax; masked keys and those beyond the end get 0."""
    scale_and_cap = scale_of(n, q.shape[3]), n.attr("softcap", 0.0)
    if n.attr("qk_output", 0) == 2:
        return scores_of(q, keys, *scale_and_cap, both(mask, inside, q), 3)
    n.require(not n.has(10), "scores with a bias as a result")
    visible = inside if mask is None else logical_and(mask, inside)
    return where(visible, scores_of(q, keys, *scale_and_cap, None, 1), number_of(0.0, q))


class _Cache:
    """Cached keys or values, as floats or 8-bit integers.

    Parameters
    ----------
    name
        "k" or "v".
    index, scale
        Operands with the past and with the scale of its integers.
    """

    def __init__(self, n: NodeContext, name: str, index: int, scale: int) -> None:
        self.past = n.optional(index)
        self.elem_type = n.elem_type(index) if self.past is not None else None
        self.scale: Tensor | None = None
        if n.attr(f"{name}_quant_type", "NONE") != "NONE":
            n.require(self.elem_type == TensorProto.INT8, "a cache of codes other than int8")
            self.scale = shaped(n.tensor(scale), n.shape(scale))

    def put(self, new: Tensor, at: int | Tensor, total: int, counts: Tensor | None) -> Tensor:
        """Return the buffer with new rows at a position; see `put_rows`."""
        if self.scale is not None:
            new = cast(clip(round(new / self.scale), -128, 127), INT32)
        return put_rows(self.past, new, at, total, counts)

    def floats(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows if self.scale is None else cast(rows, like.dtype) * cast(self.scale, like.dtype)

    def value(self, buffer: Tensor) -> Tensor | Value:
        return buffer if self.scale is None else Value(TensorProto.INT8, tensor=buffer)


def _grouped_operands(n: NodeContext) -> tuple[Tensor, Tensor, Tensor]:
    heads, shared = n.attr("num_heads"), n.attr("kv_num_heads")
    q = n.tensor(0)
    if n.has(1):
        k, v = n.tensor(1), n.tensor(2)
    else:  # packed QKV
        size = q.shape[2] // (heads + 2 * shared)
        ends = [0, heads * size, (heads + shared) * size, q.shape[2]]
        q, k, v = (slice_(q, a, b, 2) for a, b in zip(ends, ends[1:], strict=False))
    q, k, v = split_heads(q, heads), split_heads(k, shared), split_heads(v, shared)
    if n.has(14):
        for_both = n.attr("qk_norm_epsilon", 1e-6)
        q = rms_norm(q, n.tensor(14), eps=n.attr("q_norm_epsilon", for_both))
        k = rms_norm(k, n.tensor(15), eps=n.attr("k_norm_epsilon", for_both))
    return q, k, v


def _rotated(
    n: NodeContext,
    q: Tensor,
    k: Tensor,
    past: Tensor,
    caches: int,
    positions: tuple[int, bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply rotary embedding to q and k.

    Positions are an operand (its first element for a prompt), or follow the past. `caches` is the
    operand with the cos cache; the sin cache is the next one.
    """
    (batch, _, queries, _), cos, sin = q.shape, n.tensor(caches), n.tensor(caches + 1)
    steps = arange(queries)
    if positions is None or not n.has(positions[0]):
        at = reshape(past, (batch, 1)) + steps
    elif positions[1]:
        at = reshape(narrow(n.tensor(positions[0])), (-1,))[:1] + steps
    else:
        at = narrow(n.tensor(positions[0]))
    at = broadcast_to(at, (batch, queries))
    apart = bool(n.attr("rotary_interleaved", 0))
    rotated = [rotate(t, cos, sin, at, apart, 2 * cos.shape[1]) for t in (q, k)]
    return rotated[0], rotated[1]


@rule("SparseAttention", domain=MICROSOFT)
def sparse_attention(n: NodeContext) -> list[Tensor]:
    """Operands: q, k, v, buffers of past k and v, row offsets and column indices of the block mask
    in several layouts, total sequence length, length per batch, cos and sin caches.
    """
    q, k, v = _grouped_operands(n)
    (batch, heads, queries, depth), total = q.shape, int(n.number(7))
    size = n.attr("sparse_block_size")
    past = constant(np.zeros(batch, np.int32))
    if queries != total:
        past = reshape(narrow(n.tensor(8)), (batch,)) - queries
    if n.attr("do_rotary", 0):
        q, k = _rotated(n, q, k, past, 9)
    at = 0 if queries == total else past
    presents = [put_rows(n.tensor(3 + i), new, at, total) for i, new in enumerate((k, v))]
    keys, values = (slice_(t, 0, total, 2) for t in presents)
    n.require_room((n.shape(5)[0], n.shape(5)[1], max(n.shape(5)[1], total)), INT32)
    layouts = constant(_blocks(n.known(5), n.known(6)))
    places = reshape(past, (batch, 1)) + arange(queries)
    blocks = cast(minimum(places // size, layouts.shape[1] - 1), INT32)
    # (layouts, batch, queries, keys) -> (batch, heads, queries, keys), round-robin
    rows = gather(gather(layouts, blocks, 1), np.arange(total) // size, 3)
    of_heads = np.arange(heads) % layouts.shape[0]
    mask = gather(transpose(rows, (1, 0, 2, 3)), of_heads, 1)
    mask = logical_and(mask, seen(n, queries, total, past, None, 0))
    y = attention(q, keys, values, mask, scale=scale_of(n, depth))
    return [join_heads(y), *presents]


def _blocks(rows: NDArray, columns: NDArray) -> NDArray:
    """Return the block mask of keys for queries: (layouts, blocks, blocks)."""
    count = rows.shape[1] - 1
    out = np.zeros((len(rows), count, count), bool)
    for layout, ends, found in zip(out, rows, columns, strict=True):
        for row, start, end in zip(layout, ends, ends[1:], strict=False):
            row[found[start:end]] = True
    return out


def put_rows(
    old: Tensor | None,
    new: Tensor,
    at: int | Tensor,
    total: int,
    counts: Tensor | None = None,
) -> Tensor:
    """Return a buffer of at least `total` keys, with new ones from a position on, or from one per
    batch.

    Parameters
    ----------
    counts
        Number of valid new keys per batch, by default all.
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
    limit = count if counts is None else reshape(counts, (batch, 1))
    inside = logical_and(greater_equal(place, 0), less(place, limit))
    index = reshape(clip(place, 0, max(count - 1, 0)), (batch, 1, length, 1))
    taken = take_along_axis(new, broadcast_to(index, (batch, shared, length, size)), 2)
    if old is None:
        return taken
    filled = pad(old, [(0, 0), (0, 0), (0, length - room), (0, 0)]) if length > room else old
    return where(reshape(inside, (batch, 1, length, 1)), taken, filled)


def _with_sinks(
    keys: Tensor, values: Tensor, mask: Tensor | None, sinks: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Append a zero key that takes a share of each head's attention weights."""
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
