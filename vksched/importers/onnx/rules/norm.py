"""Rules for normalization."""

from __future__ import annotations

from collections.abc import Callable

from ....common.dtypes import FLOAT16, FLOAT32, FLOAT64, normalize_axis
from ....common.errors import UnsupportedOp
from ....ir.tensor import Tensor
from ....ops import (
    batch_norm,
    batch_norm_training,
    broadcast_to,
    cast,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    lp_normalize,
    mean_variance_normalize,
    reduce_mean,
    reshape,
    rms_norm,
    rsqrt,
)
from ..nodes.elements import storage
from ..nodes.node import NodeContext
from ..nodes.schemas import MICROSOFT
from .registry import rule

# -- per channel -------------------------------------------------------------------------------


@rule("BatchNormalization", rounds=True)
def batch_norm_rule(n: NodeContext) -> tuple[Tensor, ...]:
    """From opset 14 on training is an attribute; before, it was indicated by additional results."""
    n.require(n.attr("spatial", 1) == 1, "statistics for each place")
    training = bool(n.attr("training_mode", 0))
    n.require(n.version >= 14 or not any(map(n.wants, range(1, 5))), "training before opset 14")
    operands = n.tensors()
    wide = [t.dtype for t in operands]
    if len(set(wide)) > 1:  # from opset 15 on mean and variance may have a wider type
        common = FLOAT64 if FLOAT64 in wide else FLOAT32
        operands = [cast(t, common) for t in operands]
    eps = n.attr("epsilon", 1e-5)
    x, gamma, beta, mean, variance = operands
    if not training:
        return (cast(batch_norm(x, gamma, beta, mean, variance, eps), wide[0]),)
    momentum = n.attr("momentum", 0.9)
    y, *running = batch_norm_training(x, gamma, beta, mean, variance, eps, momentum)
    return cast(y, wide[0]), cast(running[0], wide[3]), cast(running[1], wide[4])


@rule("InstanceNormalization", rounds=True)
def instance_norm_rule(n: NodeContext) -> Tensor:
    return instance_norm(n.tensor(0), n.tensor(1), n.tensor(2), n.attr("epsilon", 1e-5))


@rule("GroupNormalization", rounds=True)
def group_norm_rule(n: NodeContext) -> Tensor:
    """Before opset 21 there was one scale and bias per group."""
    x, groups = n.tensor(0), n.attr("num_groups")
    gamma, beta = n.tensor(1), n.tensor(2)
    if n.version < 21:
        gamma, beta = (_for_channels(t, x.shape[1]) for t in (gamma, beta))
    return group_norm(x, groups, gamma, beta, n.attr("epsilon", 1e-5))


def _for_channels(value: Tensor, channels: int) -> Tensor:
    groups = value.shape[0]
    spread = broadcast_to(reshape(value, (groups, 1)), (groups, channels // max(groups, 1)))
    return reshape(spread, (channels,))


@rule("LRN", rounds=True)
def lrn(n: NodeContext) -> Tensor:
    return local_response_norm(
        n.tensor(0),
        n.attr("size"),
        n.attr("alpha", 1e-4),
        n.attr("beta", 0.75),
        n.attr("bias", 1.0),
    )


@rule("LpNormalization", rounds=True)
def lp_normalize_rule(n: NodeContext) -> Tensor:
    return lp_normalize(n.tensor(0), n.attr("axis", -1), n.attr("p", 2))


@rule("MeanVarianceNormalization", rounds=True)
def mean_variance_rule(n: NodeContext) -> Tensor:
    """Below opset 9, in onnxruntime only: over all axes, or all except the channels."""
    x, axes = n.tensor(0), tuple(n.attr("axes", (0, 2, 3)))
    if n.version < 9:
        axes = tuple(a for a in range(x.rank) if a != 1 or n.attr("across_channels", 0))
        if not n.attr("normalize_variance", 1):
            return x - reduce_mean(x, axes, keepdims=True)
    return mean_variance_normalize(x, axes)


# -- per row -----------------------------------------------------------------------------------


def normalized(
    norm: Callable[..., Tensor],
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    axis: int,
    eps: float,
) -> Tensor:
    """Return layer_norm or rms_norm of x; scale and shift may broadcast to x."""
    row = x.shape[normalize_axis("norm", axis, x.rank) :]
    operands = [t for t in (scale, shift) if t is not None]
    if all(t.rank <= len(row) or t.shape[: t.rank - len(row)].count(1) == t.rank - len(row)
           for t in operands):  # fmt: skip
        tail = [t.shape[max(0, t.rank - len(row)) :] for t in operands]
        operands = [
            broadcast_to(reshape(t, s), row) if t.shape != row else t
            for t, s in zip(operands, tail, strict=True)
        ]
        return norm(x, *operands, axis=axis, eps=eps)
    result = norm(x, axis=axis, eps=eps)
    result = result if scale is None else result * scale
    return result if shift is None else result + shift


def layer_norm_results(
    n: NodeContext,
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    axis: int,
    eps: float,
) -> list[Tensor | None]:
    """Return the normalized x, and its mean and inverse standard deviation if they are used."""
    out: list[Tensor | None] = [normalized(layer_norm, x, scale, shift, axis, eps), None, None]
    if n.wants(1) or n.wants(2):
        axes = tuple(range(normalize_axis("norm", axis, x.rank), x.rank))
        wide = cast(x, FLOAT32) if x.dtype == FLOAT16 else x
        mean = reduce_mean(wide, axes, keepdims=True)
        centered = wide - mean
        deviation = rsqrt(reduce_mean(centered * centered, axes, keepdims=True) + eps)
        out[1:] = [mean, deviation]
    return out


@rule("LayerNormalization", rounds=True)
def layer_norm_rule(n: NodeContext) -> list[Tensor | None]:
    """stash_type is the minimum precision of the first stage; the computation has at least that."""
    out = layer_norm_results(
        n,
        n.tensor(0),
        n.optional(1),
        n.optional(2),
        n.attr("axis", -1),
        n.attr("epsilon", 1e-5),
    )
    try:
        stash = storage(n.attr("stash_type", 1))
    except UnsupportedOp:
        stash = FLOAT32
    return [t if t is None or i == 0 else cast(t, stash) for i, t in enumerate(out)]


@rule("RMSNormalization", rounds=True)
def rms_norm_rule(n: NodeContext) -> Tensor:
    """The scale may have another element type, which is that of the result."""
    x, scale = n.tensor(0), n.tensor(1)
    axis, eps = n.attr("axis", -1), n.attr("epsilon", 1e-5)
    if x.dtype == scale.dtype:
        return normalized(rms_norm, x, scale, None, axis, eps)
    return cast(normalized(rms_norm, x, None, None, axis, eps), scale.dtype) * scale


@rule("SimplifiedLayerNormalization")
@rule("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_rule(n: NodeContext) -> list[Tensor | None]:
    """RMS norm under the name that onnxruntime writes into the default domain."""
    x, scale = n.tensor(0), n.tensor(1)
    axis, eps = n.attr("axis", -1), n.attr("epsilon", 1e-5)
    return [normalized(rms_norm, x, scale, None, axis, eps), rms_deviation(n, 1, x, axis, eps)]


def rms_deviation(n: NodeContext, index: int, x: Tensor, axis: int, eps: float) -> Tensor | None:
    """Return the inverse root mean square as result `index` if it is used."""
    if not n.wants(index):
        return None
    axes = tuple(range(normalize_axis("norm", axis, x.rank), x.rank))
    wide = cast(x, FLOAT32) if x.dtype == FLOAT16 else x
    return rsqrt(reduce_mean(wide * wide, axes, keepdims=True) + eps)
