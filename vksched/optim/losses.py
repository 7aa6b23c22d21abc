"""Losses: differences between predictions and targets, as functions of tensors.

Each has a parameter `reduction`: "mean" or "sum" over all losses, or "none".
"""

from __future__ import annotations

from ..common.dtypes import FLOATS, INT32, INT64, as_float, as_int, normalize_axis
from ..common.errors import DTypeError, ShapeError
from ..ir.name_scope import name_scope
from ..ir.tensor import Tensor, TensorLike, as_tensor
from ..ops.elementwise import abs, cast, equal, less, log, minimum, softplus, square, where
from ..ops.layout.index import take_along_axis
from ..ops.layout.reshape import expand_dims, squeeze
from ..ops.reduction.reduce import reduce_mean, reduce_sum
from ..ops.reduction.softmax import log_softmax

REDUCTIONS = ("mean", "sum", "none")


def _reduced(op: str, losses: Tensor, reduction: str) -> Tensor:
    if reduction not in REDUCTIONS:
        raise ShapeError(f"[{op}] expected a reduction of {REDUCTIONS}, got {reduction!r}")
    if reduction == "none":
        return losses
    return reduce_mean(losses) if reduction == "mean" else reduce_sum(losses)


def _pair(op: str, predicted: TensorLike, target: TensorLike) -> tuple[Tensor, Tensor]:
    left = as_tensor(predicted)
    right = as_tensor(target, like=left)
    if left.shape != right.shape:
        raise ShapeError(
            f"[{op}] expected a target of shape {left.shape}, got {right.shape}; try vs.expand"
        )
    return left, right


def mse(predicted: TensorLike, target: TensorLike, *, reduction: str = "mean") -> Tensor:
    """Return the squared error (predicted - target)^2, as torch.nn.functional.mse_loss.

    Parameters
    ----------
    predicted, target
        Values of one shape.
    reduction
        "mean", "sum" or "none".
    """
    left, right = _pair("mse", predicted, target)
    return _reduced("mse", square(left - right), reduction)


def huber(
    predicted: TensorLike, target: TensorLike, delta: float = 1.0, *, reduction: str = "mean"
) -> Tensor:
    """Return the Huber loss: half the square of the distance d up to delta, delta (d - delta / 2)
    beyond, as torch.nn.functional.huber_loss.

    Parameters
    ----------
    predicted, target
        Values of one shape.
    delta
        The distance, above 0, from which on the loss is linear.
    reduction
        "mean", "sum" or "none".
    """
    threshold = as_float("huber", "delta", delta)
    if not threshold > 0:
        raise ShapeError(f"[huber] expected a delta above 0, got {delta!r}")
    left, right = _pair("huber", predicted, target)
    distance = abs(left - right)
    near = minimum(distance, threshold)
    return _reduced("huber", near * (distance - 0.5 * near), reduction)


def binary_cross_entropy(
    logits: TensorLike, target: TensorLike, *, reduction: str = "mean"
) -> Tensor:
    """Return -(t log p + (1 - t) log(1 - p)) for p = sigmoid(logits), computed without overflow, as
    torch.nn.functional.binary_cross_entropy_with_logits.

    Parameters
    ----------
    logits
        Scores.
    target
        Floats in 0..1 of the shape of the logits, or bools.
    reduction
        "mean", "sum" or "none".
    """
    left = as_tensor(logits)
    labels = as_tensor(target, like=left if not isinstance(target, Tensor) else None)
    left, right = _pair("binary_cross_entropy", left, cast(labels, left.dtype))
    return _reduced("binary_cross_entropy", softplus(left) - left * right, reduction)


def kl_div(
    log_probs: TensorLike, target: TensorLike, *, axis: int = -1, reduction: str = "mean"
) -> Tensor:
    """Return the divergence sum(t (log t - log p)) of targets from predictions along an axis, as
    torch.nn.functional.kl_div.

    Parameters
    ----------
    log_probs
        Logarithms of probabilities, as returned by log_softmax.
    target
        Probabilities of that shape; 0 adds nothing.
    axis
        The axis of the probabilities.
    reduction
        "mean" over all other axes ("batchmean" in torch for matrices), "sum" or "none".
    """
    left, right = _pair("kl_div", log_probs, target)
    at = normalize_axis("kl_div", axis, left.rank)
    absent = equal(right, 0.0)
    known = log(where(absent, 1.0, right))
    return _reduced("kl_div", reduce_sum(right * (known - left), at), reduction)


def cross_entropy(
    logits: TensorLike,
    target: TensorLike,
    *,
    axis: int = -1,
    smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log-probability of the target class, as
    torch.nn.functional.cross_entropy.

    Parameters
    ----------
    logits
        Scores of shape (..., classes, ...), with the classes along `axis`.
    target
        int32 or int64 class indices, of the shape of the logits without that axis, or floats of the
        shape of the logits: a distribution over classes.
    axis
        The axis of the classes.
    smoothing
        The fraction of the target that is spread over all classes.
    ignore
        A class index that is excluded from the sum and the mean.
    reduction
        "mean", "sum" or "none".

    Raises
    ------
    IndexOutOfRange
        In a run, a class index is negative or too large.
    """
    op = "cross_entropy"
    x = as_tensor(logits)
    at = normalize_axis(op, axis, x.rank)
    share = as_float(op, "smoothing", smoothing)
    if not 0 <= share < 1:
        raise ShapeError(f"[{op}] expected smoothing from 0 to below 1, got {smoothing!r}")
    logs = log_softmax(x, at)
    wanted = as_tensor(target)
    if wanted.dtype in FLOATS:
        if ignore is not None:
            raise DTypeError(f"[{op}] expected integer targets with ignore, got {wanted.type}")
        _, wanted = _pair(op, x, wanted)
        found = reduce_sum(wanted * logs, at)
        return _reduced(op, -_smoothed(found, logs, at, share), reduction)
    if wanted.dtype not in (INT32, INT64) or wanted.shape != (*x.shape[:at], *x.shape[at + 1 :]):
        raise ShapeError(
            f"[{op}] expected a target of int32 {(*x.shape[:at], *x.shape[at + 1 :])}, or of "
            f"{x.dtype} {x.shape}, got {wanted.type}"
        )
    left_out = None if ignore is None else equal(wanted, as_int(op, "ignore", ignore))
    with name_scope(op):  # so that the error of an invalid class names the loss
        legal = wanted
        low = wanted.attrs.get("low")
        if not isinstance(low, int) or low < 0:  # -1 would index the last class
            legal = where(less(legal, 0), x.shape[at], legal)
        legal = legal if left_out is None else where(left_out, 0, legal)
        found = squeeze(take_along_axis(logs, expand_dims(legal, at), at), at)
    losses = -_smoothed(found, logs, at, share)
    if left_out is None:
        return _reduced(op, losses, reduction)
    counted = where(left_out, 0.0, losses)
    if reduction != "mean":
        return _reduced(op, counted, reduction)
    return reduce_sum(counted) / reduce_sum(where(left_out, 0.0, 1.0))


def _smoothed(found: Tensor, logs: Tensor, axis: int, share: float) -> Tensor:
    """Return the expected log-probability with label smoothing."""
    if not share:
        return found
    return found * (1.0 - share) + reduce_mean(logs, axis) * share


__all__ = ["binary_cross_entropy", "cross_entropy", "huber", "kl_div", "mse"]
