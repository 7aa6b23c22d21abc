"""Rules for embeddings: rows of a table, their gradient, and sums of bags of rows."""

from __future__ import annotations

from ...ir.tensor import Tensor
from ...ops import (
    broadcast_to,
    cumsum,
    embedding,
    equal,
    full,
    maximum,
    not_equal,
    reshape,
    scatter_nd,
    where,
)
from ...ops import slice as vs_slice
from .registry import Call, operand, rule


@rule("embedding.default")
def embedding_rule(
    call: Call,
    weight: Tensor,
    ids: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    return embedding(weight, ids)


@rule("embedding_dense_backward.default")
def embedding_backward(
    call: Call,
    grad: Tensor,
    ids: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    call.require(not scale_grad_by_freq, "with scale_grad_by_freq")
    width = grad.shape[-1]
    rows, at = reshape(grad, (ids.size, width)), reshape(ids, (ids.size, 1))
    if padding_idx >= 0:
        skipped = equal(at, operand(padding_idx, at.dtype))
        rows = where(broadcast_to(skipped, rows.shape), operand(0, rows.dtype), rows)
    return scatter_nd(full((num_weights, width), 0, call.dtype), at, rows, "add")


@rule("_embedding_bag_forward_only.default", "_embedding_bag.default")
def embedding_bag(
    call: Call,
    weight: Tensor,
    ids: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor | None, ...]:
    """Return sums, means or maxima (bags, width) of rows; the other results are left out."""
    call.require(ids.size > 0 and offsets.size > 0, "of an empty tensor")
    bags, zero = offsets.size - include_last_offset, operand(0, weight.dtype)
    one = operand(1, "int32")
    starts = reshape(vs_slice(operand(offsets, "int32"), 0, bags, 0), (bags, 1))
    begun = full((ids.size + 1,), 0, "int32")  # the number of bags that begin at each position
    begun = scatter_nd(begun, starts, broadcast_to(one, (bags,)), "add")
    at = reshape(vs_slice(cumsum(begun, 0) - one, 0, ids.size, 0), (ids.size, 1))
    used = full((ids.size, 1), True, "bool")
    if padding_idx >= 0:
        used = reshape(not_equal(ids, operand(padding_idx, ids.dtype)), used.shape)
    kind = ("sum", "mean", "max")[mode]
    unused = operand(float("-inf") if kind == "max" else 0, weight.dtype)
    rows = embedding(weight, ids)
    if per_sample_weights is not None:
        rows = rows * reshape(per_sample_weights, (ids.size, 1))
    rows = where(used, rows, unused)
    out = broadcast_to(unused, (bags, rows.shape[1]))
    out = scatter_nd(out, at, rows, "max" if kind == "max" else "add")
    if kind != "sum":
        counts = scatter_nd(broadcast_to(zero, (bags, 1)), at, operand(used, weight.dtype), "add")
        some = maximum(counts, operand(1, weight.dtype))
        out = out / some if kind == "mean" else where(equal(counts, zero), zero, out)
    return out, None, None, None
