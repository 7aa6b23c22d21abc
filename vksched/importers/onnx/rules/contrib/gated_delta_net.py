"""Rule for GatedDeltaNet of com.microsoft: linear attention of packed sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .....common.dtypes import FLOAT32
from .....ir.tensor import Tensor
from .....ops import (
    concat,
    exp,
    mul,
    neg,
    reduce_sum,
    repeat,
    reshape,
    rsqrt,
    sigmoid,
    softplus,
    square,
    transpose,
    unsqueeze,
    zeros,
)
from .....ops import slice as slice_
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ..attention import linear_recurrence
from ..narrow_types import NUMBERS
from ..registry import rule
from .gates import cast_like_input, wide

NORM_EPS = 1e-12
"""Epsilon of the L2 norm of queries and keys."""


@rule("GatedDeltaNet", types=NUMBERS, domain=MICROSOFT)
def gated_delta_net(n: NodeContext) -> list[Tensor]:
    """Operands: queries, keys, values (rows, heads, size), cumulative sequence lengths, decays and
    rates (rows, heads), states (sequences, heads, width, depth), then the parameters of decays from
    logits.

    Rows may also be (sequences, steps).
    """
    n.require(not n.attr("state_update_capacity", 0), "states of several steps")
    kind = n.attr("update_rule", "gated_delta")
    q, k, v = _operands(n)
    rows, heads, depth = q.shape[0], v.shape[1], q.shape[2]
    if n.attr("qk_l2_norm", 0):
        q, k = (t * rsqrt(reduce_sum(square(t), -1, keepdims=True) + NORM_EPS) for t in (q, k))
    q, k = (repeat(t, heads // t.shape[1], 1) for t in (q, k))
    decay = exp(_decay(n, rows, heads)) if "gated" in kind else None
    rate = None
    if "delta" in kind:
        rate = reshape(wide(n, 5), (rows, heads, 1))
        rate = sigmoid(rate) if n.attr("beta_activation", "none") == "sigmoid" else rate
    results, states = [], []
    for at, (start, end) in enumerate(_sequences(n, rows)):
        queries, keys, values = (_part(t, start, end) for t in (q, k, v))
        gates = [None if t is None else _part(t, start, end) for t in (decay, rate)]
        state = zeros((1, heads, depth, v.shape[2]), FLOAT32)
        if n.has(6):
            state = transpose(slice_(n.tensor(6), at, at + 1, 0), (0, 1, 3, 2))
        scale = n.attr("scale", 0.0) or 1 / math.sqrt(depth)
        output, state = linear_recurrence(queries, keys, values, state, gates[0], gates[1], scale)
        results.append(transpose(output[0], (1, 0, 2)))
        states.append(transpose(state, (0, 1, 3, 2)))
    lead = n.shape(0)[: 1 if len(n.shape(0)) < 4 else 2]
    output = reshape(concat(results, 0), (*lead, heads, v.shape[2]))
    return [cast_like_input(n, output), concat(states, 0)]


def _part(x: Tensor, start: int, end: int) -> Tensor:
    """(rows, heads, size) -> (1, heads, end - start, size)"""
    return unsqueeze(transpose(slice_(x, start, end, 0), (1, 0, 2)), 0)


def _operands(n: NodeContext) -> list[Tensor]:
    """Return queries, keys and values as (rows, heads, size); they may be packed into one
    operand.
    """
    if n.has(1):
        operands = [wide(n, i) for i in range(3)]
        return [reshape(t, (-1, *t.shape[-2:])) for t in operands]
    x, (_, heads, width, depth) = wide(n, 0), n.shape(6)
    rows = reshape(x, (-1, x.shape[-1]))
    shared = (x.shape[-1] - heads * width) // (2 * depth)
    ends = [0, shared * depth, 2 * shared * depth, x.shape[-1]]
    parts = [slice_(rows, a, b, 1) for a, b in zip(ends, ends[1:], strict=False)]
    sizes = (depth, depth, width)
    return [reshape(t, (t.shape[0], -1, s)) for t, s in zip(parts, sizes, strict=True)]


def _decay(n: NodeContext, rows: int, heads: int) -> Tensor:
    """Return the logarithms of decays: (rows, heads, 1), or one per element of a key."""
    logits = reshape(wide(n, 4), (rows, heads, -1))
    kind = n.attr("gate_activation", "none")
    if kind == "none":
        return logits
    factor = exp(reshape(n.tensor(7), (heads, 1)))
    if n.has(8):
        logits = logits + reshape(n.tensor(8), (heads, -1))
    if kind in ("softplus", "qwen"):
        return neg(factor * softplus(logits))
    n.require(kind in ("sigmoid", "kda"), f"the activation {kind}")
    return mul(sigmoid(factor * logits), n.attr("gate_lower_bound", -5.0))


def _sequences(n: NodeContext, rows: int) -> Sequence[tuple[int, int]]:
    """Return the first row of each sequence, and the one after its last."""
    if n.has(3):
        ends: Sequence[int] = n.ints(3)
    else:
        count = n.shape(6)[0]
        ends = range(0, rows + 1, rows // count)
    return list(zip(ends, ends[1:], strict=False))
