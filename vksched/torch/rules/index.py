"""Rules for indices: gather, scatter, advanced indexing and sums of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.dtypes import Shape
from ...ir.tensor import Tensor, constant
from ...ops import (
    broadcast_to,
    clip,
    cumsum,
    expand_dims,
    floor_divide,
    full,
    gather,
    gather_elements,
    gather_nd,
    maximum,
    permute_dims,
    reshape,
    scatter_elements,
    scatter_nd,
    stack,
    where,
)
from ...ops import slice as vs_slice
from .registry import Call, axis_of, operand, rule

REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add"}
REDUCTIONS["multiply"] = "mul"
NEUTRAL = {"sum": 0.0, "prod": 1.0, "amax": float("-inf"), "amin": float("inf")}
"""The value that does not change a reduction."""
Indices = Sequence[Tensor | None]


@rule("gather.default")
def gather_rule(
    call: Call, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False
) -> Tensor:
    call.require(x.rank > 0 and index.rank > 0, "of a scalar")
    return gather_elements(x, index, axis_of(dim, x.rank))


def _scattered(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduction: str
) -> Tensor:
    call.require(x.rank > 0 and index.rank > 0, "of a scalar")
    if index.size == 0:
        return x
    if src.shape != index.shape:
        src = vs_slice(src, (0,) * src.rank, index.shape)
    return scatter_elements(x, index, src, axis_of(dim, x.rank), reduction)


@rule("scatter.src")
def scatter_src(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(call, x, dim, index, src, "none")


@rule("scatter.value")
def scatter_value(call: Call, x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    src = broadcast_to(operand(value, x.dtype), index.shape)
    return _scattered(call, x, dim, index, src, "none")


@rule("scatter.reduce")
def scatter_with_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str
) -> Tensor:
    return _scattered(call, x, dim, index, src, REDUCTIONS[reduce])


@rule("scatter.value_reduce")
def scatter_value_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, value: float, reduce: str
) -> Tensor:
    src = broadcast_to(operand(value, x.dtype), index.shape)
    return _scattered(call, x, dim, index, src, REDUCTIONS[reduce])


@rule("scatter_add.default")
def scatter_add(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(call, x, dim, index, src, "add")


@rule("scatter_reduce.two")
def scatter_reduce(
    call: Call,
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    if reduce == "mean":
        return _scattered_mean(call, x, dim, index, src, include_self)
    if not include_self:
        call.require(x.dtype[0] == "f" or reduce in ("sum", "prod"), "without self, of integers")
        neutral = broadcast_to(operand(NEUTRAL[reduce], x.dtype), index.shape)
        x = _scattered(call, x, dim, index, neutral, "none")
    return _scattered(call, x, dim, index, src, REDUCTIONS[reduce])


def _scattered_mean(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool
) -> Tensor:
    """Return sums divided by the number of summands; integers are rounded down."""
    zero, one = operand(0, x.dtype), operand(1, x.dtype)
    counts = broadcast_to(one if include_self else zero, x.shape)
    counts = _scattered(call, counts, dim, index, broadcast_to(one, index.shape), "add")
    total = scatter_reduce(call, x, dim, index, src, "sum", include_self)
    counts = maximum(counts, one)
    return total / counts if x.dtype[0] == "f" else floor_divide(total, counts)


# -- advanced indexing: x[:, i, j], with indices that broadcast ------------------------------


def _indexed(call: Call, x: Tensor, indices: Indices) -> tuple[list[int], list[Tensor]]:
    """Return the indexed axes and their indices."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    found = [index for index in indices if index is not None]
    call.require(bool(found), "without indices")
    call.require(all(i.dtype != "bool" for i in found), "with a bool mask: its shape is unknown")
    return axes, found


def _common_shape(indices: Sequence[Tensor]) -> Shape:
    return tuple(np.broadcast_shapes(*[i.shape for i in indices]))


def _stacked(indices: Sequence[Tensor]) -> Tensor:
    """Return indices broadcast to one shape and stacked along a new last axis."""
    shape = _common_shape(indices)
    whole = [broadcast_to(operand(i, indices[0].dtype), shape) for i in indices]
    return stack(whole, len(shape)) if len(whole) > 1 else expand_dims(whole[0], len(shape))


def _order(x: Tensor, axes: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """Return the axes of x with indexed ones first, and the axes of the result of `gather_nd` in
    PyTorch's order.

    Parameters
    ----------
    rank
        The rank of the broadcast indices.
    """
    rest = [axis for axis in range(x.rank) if axis not in axes]
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if adjacent else 0
    result = [rank + i for i in range(before)] + list(range(rank))
    return [*axes, *rest], result + [rank + i for i in range(before, len(rest))]


@rule("index.Tensor")
def index_rule(call: Call, x: Tensor, indices: Indices) -> Tensor:
    axes, found = _indexed(call, x, indices)
    if len(axes) == 1:
        return gather(x, found[0], axes[0])
    at = _stacked(found)
    first, last = _order(x, axes, at.rank - 1)
    return permute_dims(gather_nd(permute_dims(x, first), at), last)


@rule("index_put.default", "_unsafe_index_put.default")
def index_put(
    call: Call, x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False
) -> Tensor:
    indexed = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(indexed) == 1 and indexed[0][1].dtype == "bool":
        return _masked_put(call, x, *indexed[0], operand(values, x.dtype), accumulate)
    axes, found = _indexed(call, x, indices)
    at = _stacked(found)
    rank = at.rank - 1
    first, last = _order(x, axes, rank)
    shape = (*at.shape[:-1], *[x.shape[i] for i in first[len(axes) :]])
    updates = broadcast_to(operand(values, x.dtype), [shape[i] for i in last])
    updates = permute_dims(updates, _inverse(last))
    reduction = "add" if accumulate else "none"
    out = scatter_nd(permute_dims(x, first), at, updates, reduction)
    return permute_dims(out, _inverse(first))


def _masked_put(
    call: Call, x: Tensor, axis: int, mask: Tensor, values: Tensor, accumulate: bool
) -> Tensor:
    """Return x with values at the elements that a mask of axes from `axis` on selects. All of them
    get the same ones: values (before..., 1, after...).
    """
    after = x.rank - axis - mask.rank
    full_shape = (1,) * (axis + 1 + after - values.rank) + values.shape
    before, rest = full_shape[:axis], full_shape[axis + 1 :]
    call.require(full_shape[axis] == 1, "with a bool mask and several values")
    spread = reshape(values, (*before, *(1,) * mask.rank, *rest))
    chosen = reshape(mask, (*(1,) * axis, *mask.shape, *(1,) * after))
    return where(chosen, x + spread if accumulate else spread, x)


@rule("masked_scatter.default")
def masked_scatter(call: Call, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    call.require(x.size > 0 and source.size > 0, "of an empty tensor")
    selected = reshape(broadcast_to(mask, x.shape), (x.size,))
    counted = cumsum(operand(selected, "int32"), 0) - operand(1, "int32")
    at = clip(counted, operand(0, "int32"), operand(source.size - 1, "int32"))
    values = gather(reshape(source, (source.size,)), at)
    return reshape(where(selected, values, reshape(x, (x.size,))), x.shape)


@rule("_unsafe_index.Tensor")
def unsafe_index(call: Call, x: Tensor, indices: Indices) -> Tensor:
    return index_rule(call, x, indices)


def _inverse(order: Sequence[int]) -> list[int]:
    out = [0] * len(order)
    for position, axis in enumerate(order):
        out[axis] = position
    return out


@rule("index_add.default")
def index_add(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, alpha: Any = 1
) -> Tensor:
    call.require(x.rank > 0, "of a scalar")
    axis = axis_of(dim, x.rank)
    scaled = src if alpha == 1 else src * operand(alpha, src.dtype)
    indices: list[Tensor | None] = [*[None] * axis, reshape(index, (index.size,))]
    return index_put(call, x, indices, scaled, True)


@rule("col2im.default")
def col2im(
    call: Call,
    x: Tensor,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Return images (n, c, *size) that are sums of blocks (n, c * kernel, positions)."""
    call.require(x.size > 0, "of an empty tensor")
    blocks = x if x.rank == 3 else reshape(x, (1, *x.shape))
    batch, channels = blocks.shape[0], blocks.shape[1] // math.prod(kernel)
    padded = [n + 2 * p for n, p in zip(size, padding, strict=True)]
    places = [
        np.arange(k)[:, None] * d + np.arange((n - d * (k - 1) - 1) // s + 1) * s
        for n, k, d, s in zip(padded, kernel, dilation, stride, strict=True)
    ]  # (kernel, positions) of each axis
    at = places[0][:, None, :, None] * padded[1] + places[1][None, :, None, :]
    rows = reshape(blocks, (batch * channels, at.size))
    summed = scatter_nd(
        full((math.prod(padded), batch * channels), 0, x.dtype),
        constant(at.reshape(-1, 1).astype(np.int32)),
        permute_dims(rows, (1, 0)),
        "add",
    )
    images = reshape(permute_dims(summed, (1, 0)), (batch, channels, *padded))
    for axis, (n, p) in enumerate(zip(size, padding, strict=True), 2):
        images = vs_slice(images, p, p + n, axis) if p else images
    return images if x.rank == 3 else reshape(images, images.shape[1:])
