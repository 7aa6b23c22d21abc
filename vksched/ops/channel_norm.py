"""Norms of convolutional networks, of other ops: over groups, instances, batches, neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import DTypeError, ShapeError
from ..types import FLOATS, NDArray, normalize_axes, normalize_axis
from .elementwise import abs as absolute
from .elementwise import equal, rsqrt, sqrt, where
from .elementwise import pow as power
from .layout import reshape
from .norm import layer_norm
from .reduce import reduce_mean, reduce_sum
from .resample import resample
from .tensor import Tensor, TensorLike, apply, as_tensor, binary

MVN_EPS = 1e-9
"""Added to the deviation, as in ONNX."""


def _float_tensor(op: str, x: TensorLike, least_rank: int, what: str) -> Tensor:
    tensor = as_tensor(x)
    if tensor.dtype not in FLOATS:
        raise DTypeError(f"[{op}] expected float32, got {tensor.dtype}; try vs.cast")
    if tensor.rank < least_rank:
        raise ShapeError(f"[{op}] expected {what}, got {tensor.shape}")
    return tensor


def _with_channels(op: str, x: TensorLike) -> Tensor:
    return _float_tensor(op, x, 2, "(batch, channels, ...)")


def _per_channel(op: str, what: str, value: TensorLike, x: Tensor) -> Tensor:
    """Returns one value for each channel of x."""
    tensor = as_tensor(value, like=x)
    if tensor.shape != x.shape[1:2]:
        raise ShapeError(f"[{op}] expected {what} of shape {x.shape[1:2]}, got {tensor.shape}")
    return tensor


def _along_channels(value: Tensor, x: Tensor) -> Tensor:
    """Returns a value for each channel so that it broadcasts to x."""
    return reshape(value, (*value.shape, *(1,) * (x.rank - 2)))


def _check_eps(op: str, eps: float) -> float:
    if isinstance(eps, bool) or not isinstance(eps, (int, float, np.number)) or not 0 <= eps < 3e38:
        raise DTypeError(f"[{op}] expected eps of 0 or more, a float32, got {eps!r}")
    return float(eps)


def _scaled(
    op: str, value: Tensor, gamma: TensorLike | None, beta: TensorLike | None, name: str | None
) -> Tensor:
    """value * gamma + beta, one of each for every channel; the last node gets the name."""
    if gamma is not None:
        scale = _along_channels(_per_channel(op, "gamma", gamma, value), value)
        value = apply("mul", (value, scale), name=name if beta is None else None)
    if beta is not None:
        shift = _along_channels(_per_channel(op, "beta", beta, value), value)
        value = apply("add", (value, shift), name=name)
    return value


def _grouped(
    op: str,
    x: Tensor,
    groups: int,
    gamma: TensorLike | None,
    beta: TensorLike | None,
    eps: float,
    name: str | None,
) -> Tensor:
    size = x.shape[1] // groups * math.prod(x.shape[2:]) if groups else 0
    rows = reshape(x, (x.shape[0] * groups, size))
    plain = name if gamma is None and beta is None else None
    value = reshape(layer_norm(rows, eps=_check_eps(op, eps)), x.shape, name=plain)
    return _scaled(op, value, gamma, beta, name)


def group_norm(
    x: TensorLike,
    groups: int,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    eps: float = 1e-5,
    *,
    name: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over each group of channels, as ONNX
    GroupNormalization.

    x: (batch, channels, ...); gamma, beta: (channels,).
    """
    tensor = _with_channels("group_norm", x)
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1:
        raise ShapeError(f"[group_norm] expected 1 group or more, got {groups!r}")
    if tensor.shape[1] % groups:
        raise ShapeError(
            f"[group_norm] expected channels in multiples of {groups} groups, got {tensor.shape}"
        )
    return _grouped("group_norm", tensor, int(groups), gamma, beta, eps, name)


def instance_norm(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    eps: float = 1e-5,
    *,
    name: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over each channel of each instance, as ONNX
    InstanceNormalization.

    x: (batch, channels, ...); gamma, beta: (channels,).
    """
    tensor = _with_channels("instance_norm", x)
    return _grouped("instance_norm", tensor, tensor.shape[1], gamma, beta, eps, name)


def batch_norm(
    x: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    eps: float = 1e-5,
    *,
    name: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta with a given mean and variance, as ONNX
    BatchNormalization.

    x: (batch, channels, ...); the others: (channels,). Computed as x * s + t with s and t for each
    channel.
    """
    op = "batch_norm"
    tensor = _with_channels(op, x)
    scale = _per_channel(op, "gamma", gamma, tensor) * rsqrt(
        _per_channel(op, "variance", variance, tensor) + _check_eps(op, eps)
    )
    shift = _per_channel(op, "beta", beta, tensor) - _per_channel(op, "mean", mean, tensor) * scale
    return _scaled(op, tensor, scale, shift, name)


def batch_norm_training(
    x: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    eps: float = 1e-5,
    momentum: float = 0.9,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm by the mean and variance of the batch itself, with the running ones carried on, as
    ONNX BatchNormalization with training_mode 1.

    x: (batch, channels, ...); the others: (channels,) -> (normalised x, mean * momentum + the
    batch's * (1 - momentum), variance likewise).
    """
    op = "batch_norm_training"
    tensor = _with_channels(op, x)
    if not 0 <= momentum <= 1:
        raise DTypeError(f"[{op}] expected a momentum in 0..1, got {momentum!r}")
    axes = (0, *range(2, tensor.rank))
    own_mean = reduce_mean(tensor, axes)
    centered = tensor - _along_channels(own_mean, tensor)
    own_variance = reduce_mean(centered * centered, axes)
    scale = _per_channel(op, "gamma", gamma, tensor) * rsqrt(own_variance + _check_eps(op, eps))
    y = _scaled(op, centered, scale, beta, name)
    running_mean = _per_channel(op, "mean", mean, tensor)
    running_variance = _per_channel(op, "variance", variance, tensor)
    return (
        y,
        running_mean * momentum + own_mean * (1 - momentum),
        running_variance * momentum + own_variance * (1 - momentum),
    )


def lp_normalize(x: TensorLike, axis: int = -1, p: int = 2, *, name: str | None = None) -> Tensor:
    """x by its norm along an axis, as ONNX LpNormalization; where the norm is 0, so is the result.

    p: 1, the sum of absolute values, or 2, the length.
    """
    op = "lp_normalize"
    tensor = _float_tensor(op, x, 1, "a tensor with axes")
    at = normalize_axis(op, axis, tensor.rank)
    if p not in (1, 2):
        raise ShapeError(f"[{op}] expected p of 1 or 2, got {p!r}")
    if p == 1:
        norm = reduce_sum(absolute(tensor), at, keepdims=True)
    else:
        norm = sqrt(reduce_sum(tensor * tensor, at, keepdims=True))
    # a norm of 0 has zeros alone, which any other divisor leaves
    return binary("div", tensor, where(equal(norm, 0), as_tensor(1.0, like=norm), norm), name)


def mean_variance_normalize(
    x: TensorLike, axes: int | Sequence[int] = (0, 2, 3), *, name: str | None = None
) -> Tensor:
    """(x - mean) / (sqrt(variance) + 1e-9) over axes, as ONNX MeanVarianceNormalization."""
    op = "mean_variance_normalize"
    tensor = _float_tensor(op, x, 0, "a tensor")
    over = normalize_axes(op, axes, tensor.rank)
    centered = tensor - reduce_mean(tensor, over, keepdims=True)
    deviation = sqrt(reduce_mean(centered * centered, over, keepdims=True)) + MVN_EPS
    return binary("div", centered, deviation, name)


def _window(channels: int, size: int) -> tuple[NDArray, NDArray]:
    """Returns the channels of each channel's neighbourhood, and 1 for those that there are."""
    taps = np.arange(channels)[:, None] + np.arange(size) - (size - 1) // 2
    there = (taps >= 0) & (taps < channels)
    return np.clip(taps, 0, max(channels - 1, 0)), there.astype(np.float64)


def local_response_norm(
    x: TensorLike,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    *,
    name: str | None = None,
) -> Tensor:
    """x / (bias + alpha / size * sum of the squares of `size` neighbouring channels) ** beta, as
    ONNX LRN.

    x: (batch, channels, ...).
    """
    op = "local_response_norm"
    tensor = _with_channels(op, x)
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ShapeError(f"[{op}] expected a size of 1 or more, got {size!r}")
    taps, there = _window(tensor.shape[1], min(int(size), 2 * tensor.shape[1] + 1))
    squares = resample(tensor * tensor, taps, there * (alpha / size), 1)
    return binary("div", tensor, power(squares + bias, beta), name)
