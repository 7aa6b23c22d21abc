"""Rules for normalization."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.tensor import Tensor
from ...ops import (
    batch_norm,
    full,
    group_norm,
    layer_norm,
    reduce_mean,
    reduce_var,
    reshape,
    rsqrt,
)
from .registry import Call, operand, rule


@rule("native_layer_norm.default")
def native_layer_norm(
    call: Call,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    call.require(x.size > 0, "of an empty tensor")
    axes = tuple(range(x.rank - len(shape), x.rank))
    mean = reduce_mean(x, axes, True)
    rstd = rsqrt(reduce_var(x, axes, True) + operand(eps, x.dtype))
    if eps >= 0:
        return layer_norm(x, weight, bias, x.rank - len(shape), eps), mean, rstd
    out = (x - mean) * rstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, rstd


@rule("native_group_norm.default")
def native_group_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    call.require(x.size > 0, "of an empty tensor")
    flat = reshape(x, (batch, groups, channels // groups * positions))
    variance = reduce_var(flat, -1)
    mean, rstd = reduce_mean(flat, -1), rsqrt(variance + operand(eps, x.dtype))
    return group_norm(x, groups, weight, bias, eps), mean, rstd


@rule("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    gamma = full((x.shape[1],), 1, x.dtype) if weight is None else weight
    beta = full((x.shape[1],), 0, x.dtype) if bias is None else bias
    empty = full((0,), 0, x.dtype)
    return batch_norm(x, gamma, beta, mean, variance, eps), empty, empty


def _batch_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x normalized with its own statistics, and mean, 1 / deviation and variance."""
    axes = (0, *range(2, x.rank))
    mean, variance = reduce_mean(x, axes), reduce_var(x, axes)
    rstd = rsqrt(variance + operand(eps, x.dtype))
    shape = (1, x.shape[1], *(1,) * (x.rank - 2))
    out = (x - reshape(mean, shape)) * reshape(rstd, shape)
    out = out if weight is None else out * reshape(weight, shape)
    return out if bias is None else out + reshape(bias, shape), mean, rstd, variance


@rule("_native_batch_norm_legit_functional.default")
def batch_norm_functional(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    call.require(x.size > 0, "of an empty tensor")
    if not training:
        out, empty, _ = batch_norm_inference(
            call, x, weight, bias, running_mean, running_var, momentum, eps
        )
        return out, empty, empty, running_mean, running_var
    out, mean, rstd, variance = _batch_statistics(x, weight, bias, eps)
    count = x.size // x.shape[1]
    share = operand(momentum, x.dtype)
    unbiased = variance * operand(count / max(count - 1, 1), x.dtype)
    keep = operand(1 - momentum, x.dtype)
    next_mean = running_mean * keep + mean * share
    return out, mean, rstd, next_mean, running_var * keep + unbiased * share


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_without_stats(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    call.require(x.size > 0, "of an empty tensor")
    return _batch_statistics(x, weight, bias, eps)[:3]


@rule("_fused_rms_norm.default")
def fused_rms_norm(
    call: Call, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    axes = tuple(range(x.rank - len(shape), x.rank))
    small = 1.1920928955078125e-07 if eps is None else eps
    rstd = rsqrt(reduce_mean(x * x, axes, True) + operand(small, x.dtype))
    out = x * rstd
    return out if weight is None else out * weight, rstd
