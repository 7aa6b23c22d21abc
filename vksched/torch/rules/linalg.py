"""Rules for matrix products, convolutions and attention, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd.reverse_mode import vjp
from ...ir.tensor import Tensor, constant
from ...ops import (
    attention,
    conv,
    conv_transpose,
    expand_dims,
    full,
    gather,
    matmul,
    maximum,
    not_equal,
    reduce_logsumexp,
    reduce_max,
    reduce_sum,
    reshape,
    sqrt,
    square,
    where,
)
from ...ops import pow as vs_pow
from .registry import Call, operand, rule

Ints = Sequence[int]


def _swaps_last(t: Tensor) -> bool:
    """Return True if a tensor is a transpose of the last two axes of another one."""
    axes = t.attrs.get("axes") if t.op == "transpose" else None
    if not isinstance(axes, tuple) or t.rank < 2:
        return False
    rank = t.rank
    return tuple(axes) == (*range(rank - 2), rank - 1, rank - 2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    turn_a, turn_b = _swaps_last(a), _swaps_last(b)
    return matmul(
        a.inputs[0] if turn_a else a,
        b.inputs[0] if turn_b else b,
        transpose_a=turn_a,
        transpose_b=turn_b,
    )


@rule("mm.default", "bmm.default", "matmul.default")
def mm(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b)


@rule("addmm.default", "baddbmm.default")
def addmm(call: Call, c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    out = _product(a, b)
    out = out if alpha == 1 else out * operand(alpha, call.dtype)
    if beta == 0:
        return out
    return out + (c if beta == 1 else c * operand(beta, call.dtype))


@rule("mv.default")
def mv(call: Call, a: Tensor, x: Tensor) -> Tensor:
    return reshape(_product(a, reshape(x, (x.size, 1))), (a.shape[0],))


@rule("dot.default")
def dot(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return reduce_sum(a * b)


# -- distances -----------------------------------------------------------------------------------

MAX_DIRECT_ROWS = 25
"""The number of rows up to which PyTorch computes Euclidean distances without a matrix product."""


def _norm_of(x: Tensor, p: float) -> Tensor:
    """Return the p-norm along the last axis."""
    size = abs(x)
    if p == 0:
        return reduce_sum(not_equal(size, operand(0, x.dtype)).astype(x.dtype), -1)
    if p == float("inf"):
        return reduce_max(size, -1)
    if p == 1:
        return reduce_sum(size, -1)
    if p == 2:
        return sqrt(reduce_sum(square(x), -1))
    power = operand(p, x.dtype)
    return vs_pow(reduce_sum(vs_pow(size, power), -1), operand(1 / p, x.dtype))


@rule("_cdist_forward.default")
def cdist(call: Call, a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    call.require(a.size > 0 and b.size > 0, "of an empty tensor")
    many = max(a.shape[-2], b.shape[-2]) > MAX_DIRECT_ROWS
    if p == 2 and (compute_mode == 1 or (compute_mode != 2 and many)):
        lengths = reduce_sum(square(a), -1, True), reduce_sum(square(b), -1, True)
        total = lengths[0] + _last_swapped(lengths[1])
        product = matmul(a, b, transpose_b=True)
        return sqrt(maximum(total - product - product, operand(0, a.dtype)))
    return _norm_of(expand_dims(a, -2) - expand_dims(b, -3), p)


def _last_swapped(x: Tensor) -> Tensor:
    return reshape(x, (*x.shape[:-2], x.shape[-1], x.shape[-2]))


@rule("_pdist_forward.default")
def pdist(call: Call, x: Tensor, p: float = 2) -> Tensor:
    first, second = np.triu_indices(x.shape[0], 1)
    if first.size == 0 or x.size == 0:
        return full((first.size,), 0, x.dtype)
    rows = [gather(x, constant(at.astype(np.int32)), 0) for at in (first, second)]
    return _norm_of(rows[0] - rows[1], p)


# -- convolutions ------------------------------------------------------------------------------


def _per_axis(values: Ints, count: int) -> tuple[int, ...]:
    return tuple(values) * count if len(values) == 1 else tuple(values)


@rule("convolution.default")
def convolution(
    call: Call,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    axes = w.rank - 2
    call.require(x.rank == w.rank, "without a batch")
    call.require(x.size > 0 and w.size > 0, "of an empty tensor")
    pads = _per_axis(padding, axes) * 2
    steps: dict[str, Any] = {
        "stride": _per_axis(stride, axes),
        "dilation": _per_axis(dilation, axes),
    }
    if transposed:
        more = _per_axis(output_padding, axes)
        return conv_transpose(x, w, bias, padding=pads, output_padding=more, groups=groups, **steps)
    return conv(x, w, bias, padding=pads, groups=groups, **steps)


@rule("convolution_backward.default")
def convolution_backward(
    call: Call,
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    y = convolution(call, x, w, None, stride, padding, dilation, transposed, output_padding, groups)
    wanted = [t for t, is_wanted in zip((x, w), output_mask, strict=False) if is_wanted]
    found = iter(vjp([y], [grad], wanted) if wanted else ())
    out: list[Tensor | None] = [next(found) if needed else None for needed in output_mask[:2]]
    axes = (0, *range(2, grad.rank))
    return [*out, reduce_sum(grad, axes) if output_mask[2] else None]


# -- attention ---------------------------------------------------------------------------------


def _attended(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    return attention(q, k, v, mask, causal=causal, scale=scale)


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    call.require(dropout_p == 0, "with dropout")
    out = _attended(q, k, v, is_causal, attn_mask, scale)
    return out, _logsumexp(q, k, is_causal, attn_mask, scale)


def _logsumexp(
    q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    """Return the logarithm of the softmax's denominators, (b, h, m), as PyTorch's CPU kernel."""
    from ...ops import ones, triu

    factor = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    keys = k
    if group > 1:
        from ...ops import repeat

        keys = repeat(k, group, 1)
    scores = matmul(q, keys, transpose_b=True) * operand(factor, q.dtype)
    lowest = operand(float("-inf"), q.dtype)
    if causal:
        hidden = triu(ones((q.shape[2], k.shape[2]), "int32"), 1)
        scores = where(hidden.astype("bool"), lowest, scores)
    if mask is not None:
        scores = where(mask, scores, lowest) if mask.dtype == "bool" else scores + mask
    return reduce_logsumexp(scores, -1).astype("float32")


@rule("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    call: Call,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Sequence[Tensor]:
    call.require(dropout_p == 0, "with dropout")
    y = _attended(q, k, v, is_causal, attn_mask, scale)
    return vjp([y], [grad], [q, k, v])
