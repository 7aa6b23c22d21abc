"""Rules for attention and rotary embedding of com.microsoft."""

from __future__ import annotations

import numpy as np

from .....common.dtypes import BOOL, FLOAT32
from .....ir.tensor import Tensor, constant
from .....ops import (
    arange,
    attention,
    broadcast_to,
    cast,
    concat,
    gather,
    gather_nd,
    greater_equal,
    less,
    logical_and,
    matmul,
    reshape,
    stack,
    transpose,
    where,
)
from .....ops import slice as slice_
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ..attention_heads import (
    both,
    join_heads,
    narrow,
    number_of,
    rotate,
    scale_of,
    scores_of,
    split_heads,
)
from ..integer import integer_product
from ..narrow_types import NUMBERS
from ..quantize import factor
from ..registry import rule
from .group_query_attention import put_rows


def _filtered(n: NodeContext, valid: Tensor, like: Tensor) -> Tensor:
    """Return an additive mask with a large negative finite value for masked keys."""
    low = number_of(n.attr("mask_filter_value", -10000.0), like)
    return where(valid, number_of(0.0, like), low)


def _padding_mask(n: NodeContext, index: int, like: Tensor, keys: int) -> Tensor | None:
    """Return the mask of padding keys.

    The operand is (batch,) lengths, (2 * batch,) ends and starts, or (batch, keys) or (batch,
    queries, keys) with 0 for masked keys.
    """
    if not n.has(index):
        return None
    mask_input, batch = narrow(n.tensor(index)), like.shape[0]
    if mask_input.rank == 1:
        n.require(mask_input.shape[0] in (batch, 2 * batch), f"a mask of shape {mask_input.shape}")
        valid = less(arange(keys), reshape(mask_input[:batch], (batch, 1, 1, 1)))
        if mask_input.shape[0] == 2 * batch:
            start = reshape(mask_input[batch:], (batch, 1, 1, 1))
            valid = logical_and(valid, greater_equal(arange(keys), start))
    else:
        n.require(mask_input.rank in (2, 3), f"a mask of shape {mask_input.shape}")
        rows = 1 if mask_input.rank == 2 else mask_input.shape[1]
        valid = cast(
            reshape(mask_input, (mask_input.shape[0], 1, rows, mask_input.shape[-1])), BOOL
        )
    return _filtered(n, valid, like)


@rule("Attention", domain=MICROSOFT)
def attention_rule(n: NodeContext) -> list[Tensor | None]:
    """Operands: x, weights, bias, mask, past (k and v), additive mask."""
    n.require(not n.attr("do_rotary", 0), "rotary positions")
    n.require(not n.attr("past_present_share_buffer", 0), "a shared buffer")
    return _attended(n, matmul(n.tensor(0), n.tensor(1), n.optional(2)), (3, 4, 5))


@rule("QAttention", types=NUMBERS, domain=MICROSOFT)
def quantized_attention(n: NodeContext) -> list[Tensor | None]:
    """Operands: 8-bit x and weights, bias, their scales, mask, their zero points, past."""
    n.require(not n.attr("do_rotary", 0), "rotary positions")
    n.require(not n.attr("past_present_share_buffer", 0), "a shared buffer")
    product = cast(integer_product(n, 0, 6, 1, 7), FLOAT32)
    projected = product * factor(n, 3, 4, None, (), n.shape(4)) + n.tensor(2)
    return _attended(n, projected, (5, 8, 9))


def _attended(
    n: NodeContext, projected: Tensor, operands: tuple[int, int, int]
) -> list[Tensor | None]:
    """Return the attention of packed QKV, and the new past.

    Parameters
    ----------
    operands
        Indices of the padding mask, of the past (k and v), and of the additive mask.
    """
    padding, before_at, bias = operands
    heads = n.attr("num_heads")
    widths = n.attr("qkv_hidden_sizes", ()) or (projected.shape[2] // 3,) * 3
    parts, start = [], 0
    for width in widths:
        parts.append(split_heads(slice_(projected, start, start + width, 2), heads))
        start += width
    q, k, v = parts
    past, present = 0, None
    if n.has(before_at):
        before = n.tensor(before_at)
        past = before.shape[3]
        k, v = concat([before[0], k], 2), concat([before[1], v], 2)
    if n.wants(1):
        present = stack([k, v], 0)
    mask = both(_padding_mask(n, padding, q, k.shape[2]), n.optional(bias), q)
    y = attention(
        *(q, k, v, mask),
        causal=bool(n.attr("unidirectional", 0)),
        past_len=past,
        scale=scale_of(n, q.shape[3]),
    )
    return [join_heads(y), present]


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head(n: NodeContext) -> list[Tensor | None]:
    """Operands: q, k, v, bias, padding mask, additive mask, past k, past v."""
    n.require(not n.has(8) and not n.has(9), "a shared buffer")
    causal = bool(n.attr("unidirectional", 0))
    n.require(not (causal and n.wants(3)), "scores of keys before as a result")
    heads = n.attr("num_heads")
    q, k, v = _multi_head_operands(n, heads)
    past = 0
    if n.has(6):
        past = n.shape(6)[2]
        k, v = concat([n.tensor(6), k], 2), concat([n.tensor(7), v], 2)
    mask = both(_padding_mask(n, 4, q, k.shape[2]), n.optional(5), q)
    scale = scale_of(n, q.shape[3])
    y = attention(q, k, v, mask, causal=causal, past_len=past, scale=scale)
    return [join_heads(y), k, v, scores_of(q, k, scale, 0.0, mask, 2) if n.wants(3) else None]


def _multi_head_operands(n: NodeContext, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v as (batch, heads, length, size); they may be packed into one operand."""
    query = n.tensor(0)
    if query.rank == 5:  # (batch, length, heads, 3, size)
        q, k, v = (transpose(query[:, :, :, i], (0, 2, 1, 3)) for i in range(3))
        n.require(not n.has(3), "a bias of packed operands")
        return q, k, v
    key = n.tensor(1)
    biases = _biases(n, 3, query.shape[2])
    q = split_heads(_sum(query, biases[0]), heads)
    if key.rank == 5:  # (batch, length, heads, 2, size)
        n.require(not n.has(3), "a bias of packed operands")
        k, v = (transpose(key[:, :, :, i], (0, 2, 1, 3)) for i in range(2))
        return q, k, v
    if key.rank == 4:  # in the layout of a KV cache, including biases
        return q, key, n.tensor(2)
    k, v = (
        split_heads(_sum(t, b), heads) for t, b in zip((key, n.tensor(2)), biases[1:], strict=True)
    )
    return q, k, v


@rule("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_attention(n: NodeContext) -> list[Tensor | None]:
    """Operands: one query, k, v, padding mask, additive mask, buffers of past k and v, their used
    length, beam width, beam index of each past key, bias.

    Without a past, k and v have the layout of a KV cache.
    """
    heads, query = n.attr("num_heads"), n.tensor(0)
    biases = _biases(n, 10, query.shape[2])
    q = split_heads(_sum(query, biases[0]), heads)
    presents: list[Tensor | None] = [None, None]
    if not n.has(5):
        k, v = n.tensor(1), n.tensor(2)
    else:
        n.require(n.has(1) and n.has(2), "packed operands")
        n.require(bool(n.attr("past_present_share_buffer", 0)), "buffers that are not shared")
        past = int(n.number(7))
        new = [split_heads(_sum(n.tensor(i), biases[i]), heads) for i in (1, 2)]
        presents = [put_rows(n.tensor(5 + i), new[i], past, past + 1) for i in (0, 1)]
        k, v = (slice_(t, 0, past + 1, 2) for t in presents if t is not None)
        if n.has(9) and int(n.number(8)) > 1:
            k, v = (_of_beams(n, t, past) for t in (k, v))
    mask = both(_padding_mask(n, 3, q, k.shape[2]), n.optional(4), q)
    scale = scale_of(n, q.shape[3])
    out = [join_heads(attention(q, k, v, mask, scale=scale)), *presents]
    return [*out, scores_of(q, k, scale, 0.0, mask, 2)] if n.wants(3) else out


def _of_beams(n: NodeContext, rows: Tensor, past: int) -> Tensor:
    """Return keys or values (batch, heads, past + 1, size), past ones gathered by beam."""
    width, batch = int(n.number(8)), rows.shape[0]
    first = np.arange(batch, dtype=np.int32).reshape(batch, 1) // width * width
    beams = reshape(slice_(narrow(n.tensor(9)), 0, past, 2), (batch, past)) + constant(first)
    places = broadcast_to(arange(past), (batch, past))
    picked = gather_nd(transpose(rows, (0, 2, 1, 3)), stack([beams, places], 2))
    return concat([transpose(picked, (0, 2, 1, 3)), slice_(rows, past, past + 1, 2)], 2)


def _sum(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _biases(n: NodeContext, index: int, wide: int) -> list[Tensor | None]:
    """Return the biases of q, k and v, which are packed into one operand."""
    if not n.has(index):
        return [None] * 3
    bias = n.tensor(index)
    ends = (0, wide, 2 * wide, bias.shape[0])
    return [slice_(bias, a, b, 0) for a, b in zip(ends, ends[1:], strict=False)]


@rule("RotaryEmbedding", domain=MICROSOFT)
def rotary_rule(n: NodeContext) -> Tensor:
    """Operands: x, positions (or the first position), the cos and sin caches.

    The attribute scale has no effect, as in onnxruntime.
    """
    x, cos = n.tensor(0), n.tensor(2)
    joined = x.rank == 3
    if joined:
        heads = n.attr("num_heads", 0) or x.shape[2] // (2 * cos.shape[1])
        x = split_heads(x, heads)
    at = narrow(n.tensor(1))
    if at.rank == 1:
        at = broadcast_to(at + arange(x.shape[2]), (x.shape[0], x.shape[2]))
    rotated = rotate(
        *(x, cos, n.tensor(3), at),
        interleaved=bool(n.attr("interleaved", 0)),
        rotary_dim=n.attr("rotary_embedding_dim", 0),
    )
    return join_heads(rotated) if joined else rotated


@rule("MRotaryEmbedding", domain=MICROSOFT)
def rotary_of_streams(n: NodeContext) -> Tensor:
    """Positions are three streams (3, batch, length). Each one rotates sections of a head, which
    are contiguous or interleaved.
    """
    x, cos = n.tensor(0), n.tensor(2)
    joined, half = x.rank == 3, cos.shape[1]
    if joined:
        x = split_heads(x, n.attr("num_heads", 0) or x.shape[2] // (2 * half))
    sections = n.attr("mrope_section")
    stream = np.repeat(np.arange(3), sections)
    if n.attr("mrope_layout", 0):
        place = np.arange(half)
        stream = np.where(place < 3 * np.array(sections)[place % 3], place % 3, 0)
    at = narrow(n.tensor(1))

    def cache(table: Tensor) -> Tensor:
        first, second, third = (gather(table, at[i], 0) for i in range(3))
        return where(constant(stream == 1), second, where(constant(stream == 2), third, first))

    rotated = rotate(
        *(x, cache(cos), cache(n.tensor(3)), None),
        interleaved=bool(n.attr("interleaved", 0)),
        rotary_dim=n.attr("rotary_embedding_dim", 0),
    )
    return join_heads(rotated) if joined else rotated
