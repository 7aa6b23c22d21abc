"""Strides for kernels, with axes merged if all operands allow it, to save index arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...common.dtypes import (
    INT32,
    Shape,
    TensorType,
    contiguous_strides,
    elements_of_word,
)
from ...ir.op import Call
from ...topology.limits import Limits


def broadcast_strides(shape: Shape, target: Shape) -> tuple[int, ...]:
    """Return the strides to read a contiguous tensor as `target`; 0 along broadcast axes."""
    strides = contiguous_strides(shape)
    missing = len(target) - len(shape)
    padded = (0,) * missing + tuple(
        0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)
    )
    return padded


def collapse(
    shape: Shape, operands: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Drop axes of size 1 and merge adjacent axes; return sizes and strides, innermost first.

    At least one axis remains. operands: the strides of each operand, outermost first, as in shape.
    """
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if size == 1:
            continue
        here = [s[axis] for s in operands]
        if sizes and all(h == s[-1] * sizes[-1] for h, s in zip(here, strides, strict=True)):
            sizes[-1] *= size
            continue
        sizes.append(size)
        for stride, values in zip(here, strides, strict=True):
            values.append(stride)
    if not sizes:
        return (1,), tuple((0,) for _ in operands)
    return tuple(sizes), tuple(map(tuple, strides))


def pad(values: Sequence[int], length: int, fill: int = 0) -> tuple[int, ...]:
    """Return values truncated or padded to a fixed length, for push arrays."""
    return tuple(values[:length]) + (fill,) * (length - len(values))


def peel(
    sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...], rank: int
) -> Iterator[tuple[int, ...]]:
    """Yield the word offsets of each operand for every index of the axes beyond `rank`."""
    outer = sizes[rank:]
    total = 1
    for size in outer:
        total *= size
    for number in range(total):
        rest, offsets = number, [0] * len(strides)
        for axis, size in enumerate(outer, start=rank):
            rest, index = divmod(rest, size)
            for operand, stride in enumerate(strides):
                offsets[operand] += index * stride[axis]
        yield tuple(offsets)


def as_u32(call: Call, keeps_rows: bool) -> Call | None:
    """Return a call that moves float16, or 8- and 16-bit integers, as whole words, or None.

    Parameters
    ----------
    keeps_rows
        True if operands and result have an equal last axis and the op does not move elements along
        it.
    """

    def each(type_: TensorType) -> int:
        return elements_of_word(type_.dtype)

    packed = [t for t in (*call.inputs, call.output) if each(t) > 1]
    if not keeps_rows or any(not t.shape or t.shape[-1] % each(t) for t in packed):
        return None

    def words(type_: TensorType) -> TensorType:
        if each(type_) == 1:
            return type_
        return TensorType((*type_.shape[:-1], type_.shape[-1] // each(type_)), INT32)

    return replace(call, inputs=tuple(map(words, call.inputs)), output=words(call.output))


LOCAL_SIZE = 64
MAX_DISPATCHES = 4096
"""Maximum number of dispatches of a call; larger calls run on another device."""
DISPATCH_FLOPS = 1e11
"""Maximum operations of a GPU dispatch: drivers kill kernels that run for seconds."""


def spread(count: int, limits: Limits) -> tuple[int, int, int]:
    """Return the groups for `count` elements of a grid-stride kernel.

    A CPU driver has an overhead per group, so each group processes more elements there.
    """
    per_group = LOCAL_SIZE * (64 if limits.software else 4)
    return (max(1, min(-(-count // per_group), limits.max_groups[0])), 1, 1)


LOOP_STEPS = 32768
"""Maximum loop iterations of an invocation on a CPU driver. Mesa's llvmpipe (seen with 22.3)
silently leaves all loops of an invocation after 65,535 iterations in total.
"""
SERIAL_STEPS = 1 << 20
"""Maximum loop iterations of an invocation on a GPU, about 0.5 s; drivers kill dispatches at 2 s.
"""
MAX_ROUNDS = 1 << 32
"""Maximum loop iterations of all invocations of one dispatch on a GPU, for the same limit of time.
"""
