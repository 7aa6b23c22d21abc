"""Group, instance, batch and local response norm, as compositions of ops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...common.dtypes import FLOATS, NDArray, as_float, normalize_axes, normalize_axis
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, binary
from ..elementwise import logical_and, maximum, rsqrt, sqrt, where
from ..elementwise import pow as power
from ..elementwise.fp16 import all_computed_wide, computed_wide
from ..layout.reshape import reshape
from .layer_norm import check_eps, layer_norm
from .reduce import reduce_l1, reduce_l2, reduce_max, reduce_mean, reduce_min
from .resample import resample

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
    """Return one value per channel of x."""
    tensor = as_tensor(value, like=x)
    if tensor.shape != x.shape[1:2]:
        raise ShapeError(f"[{op}] expected {what} of shape {x.shape[1:2]}, got {tensor.shape}")
    return tensor


def _along_channels(value: Tensor, x: Tensor) -> Tensor:
    """Reshape channel values to broadcast to x."""
    return reshape(value, (*value.shape, *(1,) * (x.rank - 2)))


def _scaled(value: Tensor, gamma: Tensor | None, beta: Tensor | None, name: str | None) -> Tensor:
    """Return value * gamma + beta with channel-wise gamma and beta; the last node gets the name."""
    if gamma is not None:
        scale = _along_channels(gamma, value)
        value = apply("mul", (value, scale), name=name if beta is None else None)
    if beta is not None:
        value = apply("add", (value, _along_channels(beta, value)), name=name)
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
    eps = check_eps(op, eps)
    affine = [
        _per_channel(op, what, value, x)
        for what, value in (("gamma", gamma), ("beta", beta))
        if value is not None
    ]

    def build(x: Tensor, *affine: Tensor, name: str | None) -> Tensor:
        rows = layer_norm(reshape(x, (x.shape[0] * groups, size)), eps=eps)
        value = reshape(rows, x.shape, name=None if affine else name)
        scale = affine[0] if gamma is not None else None
        return _scaled(value, scale, affine[-1] if beta is not None else None, name)

    # without scale and shift it is one op, which rounds once
    return computed_wide(build, (x, *affine), name) if affine else build(x, name=name)


def group_norm(
    x: TensorLike,
    groups: int,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    eps: float = 1e-5,
    *,
    name: str | None = None,
) -> Tensor:
    """Normalize over each group of channels, as ONNX GroupNormalization.

    The result is (x - mean) / sqrt(variance + eps) * gamma + beta.

    Shapes
    ------
    x
        (batch, channels, ...)
    gamma, beta
        (channels,)
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
    """Normalize each channel of each instance, as ONNX InstanceNormalization.

    The result is (x - mean) / sqrt(variance + eps) * gamma + beta.

    Shapes
    ------
    x
        (batch, channels, ...)
    gamma, beta
        (channels,)
    """
    tensor = _with_channels("instance_norm", x)
    return _grouped("instance_norm", tensor, tensor.shape[1], gamma, beta, eps, name)


def _statistics(op: str, x: Tensor, *values: TensorLike) -> list[Tensor]:
    names = ("gamma", "beta", "mean", "variance")
    return [_per_channel(op, n, v, x) for n, v in zip(names, values, strict=True)]


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
    """Normalize with running statistics, as ONNX BatchNormalization.

    The result is (x - mean) / sqrt(variance + eps) * gamma + beta, computed as x * s + t with
    channel-wise s and t.

    Shapes
    ------
    x
        (batch, channels, ...)
    gamma, beta, mean, variance
        (channels,)
    """
    op = "batch_norm"
    tensor, parameters = _with_channels(op, x), (gamma, beta, mean, variance)
    eps = check_eps(op, eps)

    def build(
        x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, name: str | None
    ) -> Tensor:
        scale = gamma * rsqrt(variance + eps)
        return _scaled(x, scale, beta - mean * scale, name)

    return computed_wide(build, (tensor, *_statistics(op, tensor, *parameters)), name)


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
    """Normalize with the batch's statistics, as ONNX BatchNormalization with training_mode 1.

    Returns
    -------
    tuple
        Normalized x, and the updated running mean and variance: running * momentum + batch *
        (1 - momentum).

    Shapes
    ------
    x
        (batch, channels, ...)
    gamma, beta, mean, variance
        (channels,)
    """
    op = "batch_norm_training"
    tensor = _with_channels(op, x)
    momentum = as_float(op, "momentum", momentum)
    if not 0 <= momentum <= 1:
        raise DTypeError(f"[{op}] expected a momentum in 0..1, got {momentum!r}")
    axes, eps = (0, *range(2, tensor.rank)), check_eps(op, eps)

    def build(
        x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, name: str | None
    ) -> tuple[Tensor, ...]:
        own_mean = reduce_mean(x, axes)
        centered = x - _along_channels(own_mean, x)
        own_variance = reduce_mean(centered * centered, axes)
        return (
            _scaled(centered, gamma * rsqrt(own_variance + eps), beta, name),
            mean * momentum + own_mean * (1 - momentum),
            variance * momentum + own_variance * (1 - momentum),
        )

    operands = (tensor, *_statistics(op, tensor, gamma, beta, mean, variance))
    y, running_mean, running_variance = all_computed_wide(build, operands, name)
    return y, running_mean, running_variance


def lp_normalize(x: TensorLike, axis: int = -1, p: int = 2, *, name: str | None = None) -> Tensor:
    """Divide x by its norm along an axis, as ONNX LpNormalization; 0 if the norm is 0.

    Parameters
    ----------
    p
        1, the sum of absolute values, or 2, the Euclidean norm.
    """
    op = "lp_normalize"
    tensor = _float_tensor(op, x, 1, "a tensor with axes")
    at = normalize_axis(op, axis, tensor.rank)
    if p not in (1, 2):
        raise ShapeError(f"[{op}] expected p of 1 or 2, got {p!r}")

    def build(x: Tensor, name: str | None) -> Tensor:
        if x.shape[at]:
            # prevents squares of 1e20 from overflow and squares of 1e-25 from underflow
            largest = maximum(reduce_max(x, at, True), -reduce_min(x, at, True))
            usable = logical_and(largest > 0, largest < math.inf)
            x = x / where(usable, largest, as_tensor(1.0, like=x))
        norm = (reduce_l1 if p == 1 else reduce_l2)(x, at, True)
        # a norm below 1 belongs to zeros only, which any divisor preserves
        return binary("div", x, maximum(norm, 1.0), name)

    return computed_wide(build, (tensor,), name)


def mean_variance_normalize(
    x: TensorLike, axes: int | Sequence[int] = (0, 2, 3), *, name: str | None = None
) -> Tensor:
    """Return (x - mean) / (sqrt(variance) + 1e-9) over axes, as ONNX MeanVarianceNormalization."""
    op = "mean_variance_normalize"
    tensor = _float_tensor(op, x, 0, "a tensor")
    over = normalize_axes(op, axes, tensor.rank)

    def build(x: Tensor, name: str | None) -> Tensor:
        centered = x - reduce_mean(x, over, keepdims=True)
        deviation = sqrt(reduce_mean(centered * centered, over, keepdims=True)) + MVN_EPS
        return binary("div", centered, deviation, name)

    return computed_wide(build, (tensor,), name)


def _window(channels: int, size: int) -> tuple[NDArray, NDArray]:
    """Return the channels of each channel's neighborhood, and 1 for existing channels."""
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
    """Normalize over adjacent channels, as ONNX LRN.

    The result is x / (bias + alpha / size * s) ** beta, with s the sum of the squares of `size`
    adjacent channels. x: (batch, channels, ...).
    """
    op = "local_response_norm"
    tensor = _with_channels(op, x)
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ShapeError(f"[{op}] expected a size of 1 or more, got {size!r}")
    alpha, beta = as_float(op, "alpha", alpha), as_float(op, "beta", beta)
    bias = as_float(op, "bias", bias)
    taps, there = _window(tensor.shape[1], min(int(size), 2 * tensor.shape[1] + 1))

    def build(x: Tensor, name: str | None) -> Tensor:
        squares = resample(x * x, taps, there * (alpha / size), 1)
        return binary("div", x, power(squares + bias, beta), name)

    return computed_wide(build, (tensor,), name)
