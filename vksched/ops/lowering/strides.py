"""Strides for kernels: axes merged where every operand allows, to save index arithmetic."""

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
    """Return the strides with which a contiguous tensor is read as `target`; 0 along broadcast
    axes.
    """
    strides = contiguous_strides(shape)
    missing = len(target) - len(shape)
    padded = (0,) * missing + tuple(
        0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)
    )
    return padded


def collapse(
    shape: Shape, operands: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return sizes and strides with axes of size 1 dropped and neighbours merged, innermost first.

    At least one axis is left. operands: the strides of each operand, outermost first, as in shape.
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
    """Return values cut or filled up to a length, as push arrays have a fixed one."""
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
    """Return a call that moves float16, or integers of 8 and 16 bits, on whole words, where rows
    stay whole.

    keeps_rows: all such operands and the result have the same last axis, and nothing moves in it.
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
"""A call that needs more dispatches than this goes to another device."""


def spread(count: int, limits: Limits) -> tuple[int, int, int]:
    """Return groups for `count` elements of a kernel that strides over what the groups do not
    reach.

    A CPU driver pays for every group, so each gets more elements there.
    """
    per_group = LOCAL_SIZE * (64 if limits.software else 4)
    return (max(1, min(-(-count // per_group), limits.max_groups[0])), 1, 1)


LOOP_STEPS = 32768
"""How often an invocation may go round its loops on a CPU driver: Mesa's llvmpipe (seen with 22.3)
leaves all loops of an invocation after 65,535 rounds together, without a word.
"""
SERIAL_STEPS = 1 << 20
"""How often an invocation may go round its loops on a GPU, in about half a second: drivers kill
what takes two.
"""
MAX_ROUNDS = 1 << 32
"""Loop rounds of all invocations of one dispatch on a GPU, for the same reason."""
