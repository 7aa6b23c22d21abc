"""Rules for gates and norms of recent language models of com.microsoft, computed in float32."""

from __future__ import annotations

import math

from .....common.dtypes import FLOAT16, FLOAT32, Shape
from .....ir.tensor import Tensor
from .....ops import abs as absolute
from .....ops import (
    cast,
    matmul,
    maximum,
    mul,
    reduce_sum,
    reshape,
    rms_norm,
    sigmoid,
    sign,
    silu,
    softplus,
    sqrt,
    transpose,
    unsqueeze,
)
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ..narrow_types import NUMBERS, fit
from ..registry import rule


def wide(n: NodeContext, index: int) -> Tensor:
    """Return an operand; float16 is cast to float32."""
    x = n.tensor(index)
    return cast(x, FLOAT32) if x.dtype == FLOAT16 else x


def cast_like_input(n: NodeContext, out: Tensor) -> Tensor:
    """Cast a float32 result to the element type of operand 0."""
    dtype = n.tensor(0).dtype
    return fit(out if out.dtype == dtype else cast(out, dtype), n.elem_type(0))


@rule("ScaledSiLU", types=NUMBERS, domain=MICROSOFT)
def scaled_silu(n: NodeContext) -> Tensor:
    """Round each step to the element type."""
    factor = wide(n, 1) if n.has(1) else n.attr("alpha", 1.0)
    scaled = cast_like_input(n, mul(wide(n, 0), factor))
    return fit(scaled * fit(sigmoid(scaled), n.elem_type(0)), n.elem_type(0))


@rule("GatedAdd", types=NUMBERS, domain=MICROSOFT)
def gated_add(n: NodeContext) -> Tensor:
    n.require(not n.has(3), "a projected gate")
    return fit(n.tensor(0) + fit(n.tensor(1) * n.tensor(2), n.elem_type(0)), n.elem_type(0))


@rule("LinearAttentionGate", types=NUMBERS, domain=MICROSOFT)
def linear_attention_gate(n: NodeContext) -> list[Tensor | None]:
    decay = softplus(wide(n, 0) + n.tensor(1)) * n.tensor(2)
    rate = cast_like_input(n, sigmoid(wide(n, 3))) if n.wants(1) else None
    return [cast_like_input(n, decay), rate]


# -- norms -----------------------------------------------------------------------------------------


@rule("GatedRMSNorm", types=NUMBERS, domain=MICROSOFT)
def gated_rms_norm(n: NodeContext) -> Tensor:
    """Normalize groups of the last axis with the length of the scale."""
    x, scale, gate = wide(n, 0), wide(n, 1), wide(n, 2)
    kind = n.attr("activation", "silu")
    n.require(kind in ("silu", "swish", "sigmoid"), f"the activation {kind}")
    parts = reshape(x, (*x.shape[:-1], x.shape[-1] // scale.size, scale.size))
    out = reshape(rms_norm(parts, scale, eps=n.attr("epsilon", 1e-5)), x.shape)
    return cast_like_input(n, out * (sigmoid(gate) if kind == "sigmoid" else silu(gate)))


def _branches(n: NodeContext, index: int = 0) -> Tensor:
    """Return an operand as (..., branches, size)."""
    x, count = wide(n, index), n.attr("num_branches", 0)
    return reshape(x, (*x.shape[:-1], count, x.shape[-1] // count)) if count else x


@rule("BranchwiseRMSNorm", types=NUMBERS, domain=MICROSOFT)
def branchwise_rms_norm(n: NodeContext) -> Tensor:
    x = _branches(n)
    out = rms_norm(x, eps=n.attr("epsilon", 1e-5))
    if n.has(1):
        scale = wide(n, 1)
        out = out * reshape(scale, (-1, x.shape[-1]))
    return cast_like_input(n, reshape(out, n.shape(0)))


@rule("EngramGate", types=NUMBERS, domain=MICROSOFT)
def engram_gate(n: NodeContext) -> list[Tensor | None]:
    """Operands: keys and queries (batch, length, branches, size), values (batch, length, size), and
    the scales (branches, size) of the norms of keys, queries and result.
    """
    eps, size = n.attr("epsilon", 1e-5), n.shape(0)[-1]

    def normed(x: Tensor, scale: int) -> Tensor:
        return rms_norm(x, eps=eps) * wide(n, scale)

    key, query = normed(wide(n, 0), 3), normed(wide(n, 1), 4)
    score = reduce_sum(key * query, -1, keepdims=True) * (1 / math.sqrt(size))
    gate = sigmoid(sign(score) * sqrt(maximum(absolute(score), 1e-6)))
    out = gate * unsqueeze(wide(n, 2), 2)
    return [cast_like_input(n, out), cast_like_input(n, normed(out, 5)) if n.wants(1) else None]


# -- hyper-connections -----------------------------------------------------------------------------


def _mix(n: NodeContext, index: int, branches: Shape) -> Tensor:
    """Return the gates of each branch, or of each of its features, broadcastable to branches."""
    gates = wide(n, index)
    *before, count, _ = branches
    return reshape(gates, (*before, count, gates.size // (math.prod(before) * count)))


@rule("HyperConnectionPreMix", types=NUMBERS, domain=MICROSOFT)
def pre_mix(n: NodeContext) -> Tensor:
    x = _branches(n)
    out = reduce_sum(x * _mix(n, 1, x.shape), -2)
    return cast_like_input(n, mul(out, n.attr("reduction_scale", 1.0)))


@rule("HyperConnectionPostMix", types=NUMBERS, domain=MICROSOFT)
def post_mix(n: NodeContext) -> Tensor:
    """Operands: branches, the output of the block, its gates, and the mixing matrix of branches."""
    x = _branches(n)
    out = _mix(n, 2, x.shape) * unsqueeze(wide(n, 1), -2)
    if n.has(3):
        mixing = wide(n, 3)
        axes = (*range(mixing.rank - 2), mixing.rank - 1, mixing.rank - 2)
        x = matmul(transpose(mixing, axes), x)
    return cast_like_input(n, reshape(x + out, n.shape(0)))
