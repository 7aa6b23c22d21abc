"""Gradient clipping by the global norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, overload

from ..common.errors import GradientError
from ..ir.tensor import Tensor
from ..ops.elementwise import minimum, sqrt
from ..ops.reduction.reduce import reduce_sum_square
from .optimizer_state import Params, in_range, sequence


def global_norm(grads: Params) -> Tensor:
    """Return the Euclidean norm of all elements of some tensors as a scalar."""
    tensors = _listed("global_norm", grads)
    total = reduce_sum_square(tensors[0])
    for tensor in tensors[1:]:
        total = total + reduce_sum_square(tensor)
    return sqrt(total)


@overload
def clip_by_global_norm(grads: Tensor, limit: float) -> Tensor: ...
@overload
def clip_by_global_norm(grads: Mapping[Any, Tensor], limit: float) -> dict[Any, Tensor]: ...
@overload
def clip_by_global_norm(grads: Sequence[Tensor], limit: float) -> tuple[Tensor, ...]: ...
def clip_by_global_norm(grads: Params, limit: float) -> Params:
    """Scale gradients so that their global norm is at most `limit`, as
    torch.nn.utils.clip_grad_norm_: each is multiplied by min(1, limit / (norm + 1e-6)).

    Parameters
    ----------
    grads
        A tensor, a sequence or a dict of tensors.
    limit
        The maximum norm, above 0.

    Returns
    -------
    Tensor, tuple or dict
        The scaled gradients, with the structure of `grads`.

    Raises
    ------
    GradientError
        There are no gradients.
    ShapeError
        The limit is not above 0.
    """
    op = "clip_by_global_norm"
    most = in_range(op, "limit", limit, 1e-30, inf)
    tensors = _listed(op, grads)
    scale = minimum(most / (global_norm(tensors) + 1e-6), 1.0)
    clipped = tuple(grad * scale for grad in tensors)
    if isinstance(grads, Tensor):
        return clipped[0]
    return dict(zip(grads, clipped, strict=True)) if isinstance(grads, Mapping) else clipped


def _listed(op: str, grads: Params) -> tuple[Tensor, ...]:
    if isinstance(grads, Tensor):
        return (grads,)
    listed = grads.values() if isinstance(grads, Mapping) else grads
    tensors = sequence(op, "grads", listed)
    if not tensors:
        raise GradientError(f"[{op}] expected gradients, got none")
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise GradientError(f"[{op}] expected Tensors as grads, got {tensor!r}")
    return tensors
