"""Rules for attention and rotary embedding."""

from __future__ import annotations

import math

import numpy as np

from ....common.dtypes import BOOL, FLOAT32, FLOAT64, numpy_dtype
from ....ir.tensor import Tensor, constant
from ....ops import (
    arange,
    attention,
    cast,
    concat,
    exp,
    less,
    matmul,
    mul,
    repeat,
    reshape,
    stack,
    zeros,
)
from ....ops import slice as slice_
from ..nodes.elements import PLAIN
from ..nodes.node import NodeContext
from ..nodes.schemas import MICROSOFT
from .attention_heads import (
    both,
    join_heads,
    narrow,
    rotate,
    scores_of,
    seen,
    split_heads,
)
from .registry import rule


@rule("RotaryEmbedding", rounds=True)
def rotary_rule(n: NodeContext) -> Tensor:
    x = n.tensor(0)
    joined = x.rank == 3
    rotated = rotate(
        split_heads(x, n.attr("num_heads")) if joined else x,
        n.tensor(1),
        n.tensor(2),
        n.optional(3),
        bool(n.attr("interleaved", 0)),
        n.attr("rotary_embedding_dim", 0),
    )
    return join_heads(rotated) if joined else rotated


@rule("Attention", types=PLAIN)
def attention_rule(n: NodeContext) -> list[Tensor | None]:
    """Operands: q, k, v, mask, past k, past v, number of keys that are not padding."""
    q, k, v = n.tensor(0), n.tensor(1), n.tensor(2)
    joined = q.rank == 3
    if joined:
        heads, shared = n.attr("q_num_heads"), n.attr("kv_num_heads")
        q, k, v = split_heads(q, heads), split_heads(k, shared), split_heads(v, shared)
    past = 0
    if n.has(4):
        past = n.shape(4)[2]
        k, v = concat([n.tensor(4), k], 2), concat([n.tensor(5), v], 2)
    depth, queries, keys = q.shape[3], q.shape[2], k.shape[2]
    scale = n.attr("scale", None)
    scale = 1 / math.sqrt(depth) if scale is None else scale
    softcap = n.attr("softcap", 0.0)
    bounds = [n.attr(f"{side}_window_size", -1) for side in ("left", "right")]
    left, right = (None if b < 0 else b for b in bounds)
    if n.attr("is_causal", 0):
        right = 0
    mask = _mask(n, q, keys)
    used = narrow(n.tensor(6)) if n.has(6) and mask is None and not n.wants(3) else None
    if used is not None:  # an external KV cache: only its first keys count
        past = -queries
    elif n.has(6):
        counts = narrow(n.tensor(6))
        mask = both(mask, less(arange(keys), reshape(counts, (-1, 1, 1, 1))), q)
        if (left, right) != (None, None):
            mask = both(mask, seen(n, queries, keys, counts - queries, left, right), q)
        left = right = None
    y = attention(
        *(q, k, cast(v, q.dtype)),
        mask,
        past_len=past,
        window=(left, right),
        scale=scale,
        softcap=softcap,
        kv_len=used,
    )
    out: list[Tensor | None] = [join_heads(y) if joined else y, k, v]
    if n.wants(3):
        if (left, right) != (None, None):
            mask = both(mask, seen(n, queries, keys, past, left, right), q)
        stage = n.attr("qk_matmul_output_mode", 0)
        out.append(scores_of(q, k, scale, softcap, mask, stage))
    return out


def _mask(n: NodeContext, q: Tensor, keys: int) -> Tensor | None:
    """Return the mask; keys beyond the end of a shorter mask are masked."""
    mask = n.optional(3)
    if mask is None:
        return None
    mask = mask if mask.dtype == BOOL else cast(mask, q.dtype)
    short = keys - mask.shape[-1]
    if short > 0 and mask.shape[-1] != 1:
        fill = False if mask.dtype == BOOL else -math.inf
        n.require_room((*mask.shape[:-1], short), mask.dtype)
        rest = constant(np.full((*mask.shape[:-1], short), fill, numpy_dtype(mask.dtype)))
        mask = concat([mask, rest], -1)
    return mask


@rule("LinearAttention", rounds=True)
@rule("LinearAttention", domain=MICROSOFT)
def linear_attention(n: NodeContext) -> tuple[Tensor, Tensor]:
    """Linear attention as a recurrence over a state (batch, shared heads, depth, width).

    If there are fewer query heads than states, each query head is repeated for several states.
    """
    n.require(not n.attr("state_window", 0), "states of several steps")
    kind = n.attr("update_rule", "gated_delta")
    heads, shared = n.attr("q_num_heads"), n.attr("kv_num_heads")
    q, k, v = (split_heads(n.tensor(i), h) for i, h in enumerate((heads, shared, shared)))
    if heads < shared:
        q, heads = repeat(q, shared // heads, 1), shared
    batch, _, steps, depth = q.shape
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(depth)
    initial = n.optional(3)
    state = zeros((batch, shared, depth, v.shape[3]), q.dtype) if initial is None else initial
    stored, dtype = state.dtype, FLOAT64 if state.dtype == FLOAT64 else FLOAT32
    decay = exp(cast(split_heads(n.tensor(4), shared), dtype)) if "gated" in kind else None
    rate = None
    if "delta" in kind:
        beta = cast(n.tensor(5), dtype)
        rate = split_heads(beta, beta.shape[2])
    q, k, v, state = (cast(t, dtype) for t in (q, k, v, state))
    attended, state = linear_recurrence(q, k, v, state, decay, rate, scale)
    return cast(join_heads(attended), n.tensor(0).dtype), cast(state, stored)


def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    decay: Tensor | None,
    rate: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output of linear attention (batch, heads, steps, width), and the last state.

    Shapes
    ------
    q: (batch, heads, steps, depth)
    k, v: heads equal to q or fewer
    state: (batch, shared heads, depth, width)
    decay: (batch, shared heads, steps, depth or 1), factors of the state
    rate: (batch, shared heads or 1, steps, 1), the fraction of an old value that a new one replaces
    """
    (batch, heads, steps, depth), (shared, width) = q.shape, (k.shape[1], v.shape[3])
    q = reshape(q, (batch, shared, heads // shared, steps, depth))
    results = []
    for t in range(steps):
        key = slice_(k, t, t + 1, 2)
        change = slice_(v, t, t + 1, 2)
        if decay is not None:
            gate = slice_(decay, t, t + 1, 2)
            state = mul(state, reshape(gate, (batch, shared, gate.shape[3], 1)))
        if rate is not None:
            change = (change - matmul(key, state)) * slice_(rate, t, t + 1, 2)
        state = state + matmul(key, change, transpose_a=True)
        results.append(matmul(q[:, :, :, t], state) * scale)
    shape = (batch, heads, steps, width)
    return reshape(stack(results, 3), shape) if results else zeros(shape, v.dtype), state
