"""Rules for mixtures of experts of com.microsoft.

Each row is multiplied by the matrices of the experts that the router selected; the results are
weighted and summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .....common.dtypes import FLOAT32, NDArray
from .....ir.tensor import Tensor
from .....ops import (
    add,
    clip,
    flip,
    full,
    gather,
    gelu,
    greater,
    log,
    matmul,
    maximum,
    minimum,
    moe_linear,
    mul,
    reduce_sum,
    relu,
    reshape,
    scatter_elements,
    sigmoid,
    silu,
    softmax,
    take_along_axis,
    topk,
    unsqueeze,
    where,
)
from ...nodes.elements import ANY
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ..attention_heads import number_of
from ..narrow_types import cast
from ..registry import rule
from .matmul_nbits import once, unpack

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: gelu(x, "tanh"),
    "identity": lambda x: x,
    "relu": relu,
    "silu": silu,
}


@rule("MoE", domain=MICROSOFT)
def experts(n: NodeContext) -> Tensor:
    """Operands: x, router logits, then weights and a bias of each of two layers."""
    n.require(not n.has(6) and not n.has(7), "a third product")
    weights, expert_ids = _routed(n, bool(n.attr("normalize_routing_weights", 0)))
    first = n.tensor(2), n.optional(3)
    return _mixed(n, weights, expert_ids, first, (n.tensor(4), n.optional(5)))


@rule("QMoE", types=ANY, domain=MICROSOFT)
def quantized_experts(n: NodeContext) -> Tensor:
    """Operands: x, router logits, then weights, scales and a bias of each of three layers, their
    zero points, and router weights that replace those of the logits.
    """
    n.require(n.attr("quant_type", "int") == "int", f"weights of {n.attr('quant_type')}")
    n.require(not any(map(n.has, (8, 9, 10, 13))), "a third product")
    weights, expert_ids = _routed(n, normalize=True)
    if n.has(14):
        weights = take_along_axis(n.tensor(14), expert_ids, 1)
        if n.attr("normalize_routing_weights", 0):
            weights = weights / reduce_sum(weights, 1, keepdims=True)
    first, second = (_dequantized(n, at, zeros) for at, zeros in ((2, 11), (5, 12)))
    return _mixed(n, weights, expert_ids, (first, n.optional(4)), (second, n.optional(7)))


def _dequantized(n: NodeContext, at: int, zeros: int) -> Tensor:
    """Return dequantized weights from operands `at` (matrices, rows, bytes), scales (matrices,
    rows[, blocks]) and zero points.
    """
    bits = n.attr("expert_weight_bits", 4)
    for name in ("fc1_expert_weight_bits", "fc2_expert_weight_bits"):
        n.require(n.attr(name, bits) == bits, "layers of different numbers of bits")
    n.require(bits in (2, 4, 8), f"{bits} bits")

    def make(packed: NDArray, scales: NDArray, zero: NDArray | None) -> NDArray:
        values = unpack(packed, bits).astype(scales.dtype)
        blocks = scales if scales.ndim == 3 else scales[..., None]
        middle: NDArray = np.array(1 << (bits - 1))
        if zero is not None:  # the zero points of each row start at a byte boundary
            middle = unpack(zero, bits)[..., : scales.shape[-1]].reshape(blocks.shape)
        size = values.shape[-1] // blocks.shape[-1]
        wide = values.reshape(*blocks.shape, size) - middle.astype(scales.dtype)[..., None]
        return np.ascontiguousarray((wide * blocks[..., None]).reshape(values.shape))

    return once(n, (at, at + 1, zeros), make)


def _routed(n: NodeContext, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return the weights and ids of the experts selected for each row: (rows, used).

    Of equal scores onnxruntime selects the last.
    """
    weights, behind = topk(flip(softmax(n.tensor(1), -1), -1), n.attr("k", 1))
    expert_ids = n.shape(1)[-1] - 1 - behind
    if normalize:
        weights = weights / reduce_sum(weights, 1, keepdims=True)
    return weights, expert_ids


def _mixed(
    n: NodeContext,
    weights: Tensor,
    expert_ids: Tensor,
    first: tuple[Tensor, Tensor | None],
    second: tuple[Tensor, Tensor | None],
) -> Tensor:
    """Return the weighted sum of the experts' two-layer outputs for each row."""
    x = n.tensor(0)

    def layer(rows: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
        result = moe_linear(rows, matrices, expert_ids)
        return result if bias is None else result + gather(bias, expert_ids, 0)

    rows = reshape(x, (-1, x.shape[-1]))
    result = layer(_activated(n, layer(rows, *first)), *second)
    return reshape(reduce_sum(result * unsqueeze(weights, 2), 1), x.shape)


def _activated(n: NodeContext, x: Tensor) -> Tensor:
    """Apply the activation; for SwiGLU, gates and values are interleaved."""
    kind = n.attr("activation_type", "relu")
    if kind != "swiglu":
        n.require(kind in _ACTIVATIONS, f"the activation {kind}")
        return _ACTIVATIONS[kind](x)
    n.require(n.attr("swiglu_fusion", 0) == 1, "gates that do not alternate with values")
    n.require(not n.attr("swiglu_limit_after_activation", 0), "limits after the activation")
    pairs = reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
    gate, value = pairs[..., 0], pairs[..., 1]
    limit = n.attr("swiglu_limit", math.inf)
    if math.isfinite(limit):
        gate, value = minimum(gate, limit), clip(value, -limit, limit)
    swish = gate * sigmoid(mul(gate, n.attr("activation_alpha", 1.0)))
    return mul(swish, add(value, n.attr("activation_beta", 0.0)))


@rule("MoEGroupRouter", domain=MICROSOFT)
def group_router(n: NodeContext) -> list[Tensor | None]:
    """Select the best experts within the best groups of each row.

    Return their logits, with a sentinel for all others, or the scores and weights of all experts as
    inputs of MoE.
    """
    x, bias = n.tensor(0), n.tensor(1)
    logits = reshape(x, (-1, x.shape[-1]))
    if n.has(2):
        logits = matmul(logits, n.tensor(2), transpose_b=True)
    weights = sigmoid(cast(logits, FLOAT32))
    scores = weights + bias
    if not n.wants(0):
        return [None, scores, weights]
    rows, count = weights.shape
    groups, used = n.attr("n_group", 1), n.attr("topk_group", 1)
    grouped = reshape(scores, (rows, groups, count // groups))
    best, _ = topk(grouped, min(n.attr("group_topk", 2), count // groups))
    _, open_groups = topk(reduce_sum(best, 2), used)
    is_open = scatter_elements(
        full((rows, groups), 0.0), open_groups, full((rows, used), 1.0), axis=1
    )
    lowest = number_of(-math.inf, grouped)
    allowed = where(greater(reshape(is_open, (rows, groups, 1)), 0.0), grouped, lowest)
    _, expert_ids = topk(reshape(allowed, (rows, count)), n.attr("top_k"))
    taken = log(maximum(take_along_axis(weights, expert_ids, 1), 1e-20))
    sentinel = full((rows, count), n.attr("router_sentinel", -10000.0))
    return [cast(scatter_elements(sentinel, expert_ids, taken, axis=1), x.dtype)]
