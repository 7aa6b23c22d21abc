"""Rules for shapes, axes, slices, concatenation and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.tensor import Tensor, constant
from ...ops import (
    broadcast_to,
    concat,
    flip,
    gather,
    pad,
    permute_dims,
    reshape,
    roll,
    split,
    stack,
    tile,
    where,
)
from ...ops import slice as vs_slice
from .registry import Call, axes_of, axis_of, operand, rule

Ints = Sequence[int]


@rule("view.default", "reshape.default", "_unsafe_view.default", "_reshape_alias.default")
def view(call: Call, x: Tensor, shape: Ints, *strides: Any) -> Tensor:
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        shape = [x.size // max(rest, 1) if d == -1 else d for d in shape]
    return reshape(x, tuple(shape))


@rule("permute.default")
def permute(call: Call, x: Tensor, dims: Ints) -> Tensor:
    return permute_dims(x, axes_of(dims, x.rank)) if x.rank else x


@rule("t.default")
def t(call: Call, x: Tensor) -> Tensor:
    return permute_dims(x, (1, 0)) if x.rank == 2 else x


@rule("transpose.int")
def transpose(call: Call, x: Tensor, a: int, b: int) -> Tensor:
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    a, b = axis_of(a, x.rank), axis_of(b, x.rank)
    order[a], order[b] = b, a
    return permute_dims(x, order)


@rule("expand.default")
def expand(call: Call, x: Tensor, size: Ints, implicit: bool = False) -> Tensor:
    leading = len(size) - x.rank
    shape = [x.shape[i - leading] if d == -1 else d for i, d in enumerate(size)]
    return broadcast_to(x, shape)


@rule("squeeze.dim", "squeeze.dims", "squeeze.default")
def squeeze(call: Call, x: Tensor, dim: int | Ints | None = None) -> Tensor:
    if isinstance(dim, Sequence) and not dim:
        return x
    removed = {axis for axis in axes_of(dim, x.rank) if axis < x.rank and x.shape[axis] == 1}
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in removed))


@rule("unsqueeze.default")
def unsqueeze(call: Call, x: Tensor, dim: int) -> Tensor:
    axis = axis_of(dim, x.rank + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@rule("as_strided.default")
def as_strided(
    call: Call, x: Tensor, size: Ints, stride: Ints, storage_offset: int | None = None
) -> Tensor:
    call.require(call.dense, "of a view")
    at = np.full(tuple(size), storage_offset or 0, np.int32)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = (-1, *(1,) * (len(size) - 1 - axis))
        at += (np.arange(count, dtype=np.int32) * step).reshape(shape)
    return gather(reshape(x, (x.size,)), constant(at), 0)


@rule("unfold.default")
def unfold(call: Call, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    call.require(x.rank > 0, "of a scalar")
    axis = axis_of(dim, x.rank)
    first = np.arange(0, x.shape[axis] - size + 1, step, dtype=np.int32)
    windows = gather(x, constant(first[:, None] + np.arange(size, dtype=np.int32)), axis)
    rest = [i for i in range(windows.rank) if i != axis + 1]
    return permute_dims(windows, [*rest, axis + 1])


def _range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the limits of a slice as PyTorch clamps them."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@rule("slice.Tensor")
def slice_rule(
    call: Call,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    axis = axis_of(dim, x.rank)
    first, last = _range(x.shape[axis], start, end)
    if (first, last, step) == (0, x.shape[axis], 1):
        return x
    return vs_slice(x, first, last, axis, step)


@rule("select.int")
def select(call: Call, x: Tensor, dim: int, index: int) -> Tensor:
    axis = axis_of(dim, x.rank)
    first = axis_of(index, x.shape[axis])
    part = vs_slice(x, first, first + 1, axis)
    return reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


@rule("slice_scatter.default")
def slice_scatter(
    call: Call,
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    axis = axis_of(dim, x.rank)
    first, last = _range(x.shape[axis], start, end)
    part = operand(src, x.dtype)
    if step == 1 or last == first:
        return _replaced(x, part, axis, first, last)
    positions = np.arange(x.shape[axis])
    inside = (positions >= first) & (positions < last) & ((positions - first) % step == 0)
    at = np.clip((positions - first) // step, 0, part.shape[axis] - 1)
    mask = inside.reshape(-1, *(1,) * (x.rank - 1 - axis))
    return where(constant(mask), gather(part, constant(at.astype(np.int32)), axis), x)


@rule("select_scatter.default")
def select_scatter(call: Call, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    axis = axis_of(dim, x.rank)
    first = axis_of(index, x.shape[axis])
    row = reshape(operand(src, x.dtype), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _replaced(x, row, axis, first, first + 1)


def _replaced(x: Tensor, part: Tensor, axis: int, first: int, last: int) -> Tensor:
    """Return x with positions first..last-1 of an axis replaced by a part."""
    shape = (*x.shape[:axis], last - first, *x.shape[axis + 1 :])
    parts = [broadcast_to(part, shape)] if last > first else []
    if first > 0:
        parts.insert(0, vs_slice(x, 0, first, axis))
    if last < x.shape[axis]:
        parts.append(vs_slice(x, last, x.shape[axis], axis))
    return concat(parts, axis) if len(parts) > 1 else parts[0]


@rule("cat.default")
def cat(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    rank = max(t.rank for t in tensors)
    parts = [operand(t, call.dtype) for t in tensors if t.shape != (0,) or rank == 1]
    return concat(parts, axis_of(dim, rank)) if len(parts) > 1 else parts[0]


@rule("stack.default")
def stack_rule(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return stack([operand(t, call.dtype) for t in tensors], axis_of(dim, tensors[0].rank + 1))


@rule("split_with_sizes.default")
def split_with_sizes(call: Call, x: Tensor, sizes: Ints, dim: int = 0) -> tuple[Tensor, ...]:
    return split(x, tuple(sizes), axis_of(dim, x.rank))


@rule("split.Tensor")
def split_rule(call: Call, x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    axis = axis_of(dim, x.rank)
    total = x.shape[axis]
    call.require(total > 0 and size > 0, "of an empty axis")
    return split(x, tuple(min(size, total - i) for i in range(0, total, size)), axis)


@rule("unbind.int")
def unbind(call: Call, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = axis_of(dim, x.rank)
    return tuple(select(call, x, axis, i) for i in range(x.shape[axis]))


@rule("repeat.default")
def repeat(call: Call, x: Tensor, repeats: Ints) -> Tensor:
    whole = reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    return tile(whole, tuple(repeats)) if repeats else whole


@rule("flip.default")
def flip_rule(call: Call, x: Tensor, dims: Ints) -> Tensor:
    return flip(x, axes_of(dims, x.rank)) if dims and x.rank else x


@rule("roll.default")
def roll_rule(call: Call, x: Tensor, shifts: Ints, dims: Ints = ()) -> Tensor:
    return roll(x, tuple(shifts), axes_of(dims, x.rank)) if dims else roll(x, shifts[0])


@rule("diagonal.default")
def diagonal(call: Call, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    rows, columns = x.shape[a], x.shape[b]
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    call.require(count > 0, "without elements")
    rest = [i for i in range(x.rank) if i not in (a, b)]
    flat = reshape(permute_dims(x, [*rest, a, b]), (*[x.shape[i] for i in rest], rows * columns))
    first = offset if offset >= 0 else -offset * columns
    last = first + (count - 1) * (columns + 1) + 1
    return vs_slice(flat, first, last, len(rest), columns + 1)


def _padded(x: Tensor, pads: Ints, mode: str, value: float = 0) -> Tensor:
    axes = [x.rank - 1 - i for i in range(len(pads) // 2)]
    pairs = [(pads[2 * i], pads[2 * i + 1]) for i in range(len(pads) // 2)]
    return pad(x, pairs, mode, value, axes)


@rule("constant_pad_nd.default")
def constant_pad(call: Call, x: Tensor, pads: Ints, value: float = 0) -> Tensor:
    return _padded(x, pads, "constant", value)


def _border(x: Tensor, pads: Ints, mode: str) -> Tensor:
    """Return x with repeated elements around it. Negative pads remove elements of the result: the
    repeated ones are those of the whole x.
    """
    if all(n >= 0 for n in pads):
        return _padded(x, pads, mode)
    for i in range(len(pads) // 2):
        axis, before, after = x.rank - 1 - i, pads[2 * i], pads[2 * i + 1]
        last = x.shape[axis] - 1
        at = np.arange(-before, last + 1 + after)
        if mode == "reflect":
            at = last - np.abs(last - np.abs(at))
        x = gather(x, constant(np.clip(at, 0, last).astype(np.int32)), axis)
    return x


@rule("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(call: Call, x: Tensor, padding: Ints) -> Tensor:
    return _border(x, padding, "reflect")


@rule("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def replication_pad(call: Call, x: Tensor, padding: Ints) -> Tensor:
    return _border(x, padding, "edge")


@rule("copy.default")
def copy(call: Call, x: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    return broadcast_to(operand(src, call.dtype), x.shape)


@rule("index_select.default")
def index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if x.rank == 0:
        return x
    call.require(index.rank == 1, "by a scalar")
    return gather(x, index, axis_of(dim, x.rank))
