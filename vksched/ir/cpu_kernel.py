"""CPU kernels: numpy implementations that write preallocated memory in cache-sized pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..common.cpu_count import usable_cores
from ..common.dtypes import NDArray

if TYPE_CHECKING:
    from .attrs import Attrs

BLOCK = 1 << 18
"""Elements of one piece. Between numpy passes a thread waits for the interpreter lock, about 10 us
if another thread holds it. A pass has to take longer, so a piece fits the last-level cache, not L2.
"""

LONG = 1 << 23
"""Minimum operations of a call with few elements that is split across threads, about 0.1 ms."""

SHARES = 2 * usable_cores() if usable_cores() > 1 else 1
"""Maximum number of pieces of a call if each piece reads a whole operand again."""

MIN_PAIRWISE_ROW = 1 << 12
"""Row length above which naive float32 summation loses digits that pairwise summation keeps."""

Piece = tuple[tuple[NDArray, ...], NDArray]
"""Slices of the operands, and the slice of the result that they produce."""
Compute = Callable[[tuple[NDArray, ...], "Attrs", NDArray], None]
Cut = Callable[[tuple[NDArray, ...], "Attrs", NDArray], Iterator[Piece]]


def is_small(inputs: tuple[NDArray, ...], out: NDArray) -> bool:
    """Return True if a call is not split."""
    return max([out.size, *[x.size for x in inputs]]) <= BLOCK


def rows_of_piece(rows: int, elements: int) -> int:
    """Return the number of rows per piece; pieces have equal sizes, so threads finish together."""
    pieces = -(-elements // BLOCK)
    return max(1, -(-rows // max(1, pieces)))


def sum_rows(x: NDArray) -> NDArray:
    """Return sums over the last axis, with keepdims.

    Short rows use a matmul, which is the fastest but sums sequentially. Long rows use pairwise
    summation.
    """
    if x.shape[-1] > MIN_PAIRWISE_ROW:
        return np.asarray(np.add.reduce(x, axis=-1, keepdims=True))
    return np.asarray(np.matmul(x, np.ones((x.shape[-1], 1), x.dtype)))


def whole(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Yield the whole call as one piece."""
    yield inputs, out


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """CPU implementation of an op that is faster than its reference.

    Parameters
    ----------
    compute
        (operands, attributes, result) -> None. Writes the whole result, which does not overlap the
        operands. As accurate as the reference for any split into pieces.
    cut
        (operands, attributes, result) -> independent pieces that together compute the call.
    least
        Number of elements, of the largest operand or the result, up to which a call is not split.
    fused
        As `compute`, with the epilogue in the attributes, whose residual is the last operand.
        Returns False, without any write, if the epilogue must run separately. `cut` then also
        splits calls with an epilogue. None: not available.
    """

    compute: Compute
    cut: Cut = whole
    least: int = BLOCK
    fused: Callable[[tuple[NDArray, ...], Attrs, NDArray], bool] | None = None


def cut_elements(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split an elementwise call, whose operands broadcast to the result."""
    if all(x.shape == out.shape and x.flags.c_contiguous for x in inputs):
        flat, line = tuple(x.reshape(-1) for x in inputs), out.reshape(-1)
        step = rows_of_piece(line.size, line.size)
        for start in range(0, line.size, step):
            piece = slice(start, start + step)
            yield tuple(x[piece] for x in flat), line[piece]
        return
    yield from cut_leading(tuple(np.broadcast_to(x, out.shape) for x in inputs), out, out.ndim)


def cut_leading(inputs: tuple[NDArray, ...], out: NDArray, axes: int) -> Iterator[Piece]:
    """Split along the first `axes` axes, which operands and result share, into pieces of about
    BLOCK elements and unchanged rank.
    """
    inner = [math.prod(out.shape[axis + 1 :]) for axis in range(axes)]
    axis = next((axis for axis in range(axes) if inner[axis] <= BLOCK), axes - 1)
    if axis < 0 or out.size <= BLOCK:
        yield inputs, out
        return
    step = rows_of_piece(out.shape[axis], out.shape[axis] * inner[axis])
    for outer in np.ndindex(*out.shape[:axis]):
        for start in range(0, out.shape[axis], step):
            at = (*(slice(i, i + 1) for i in outer), slice(start, start + step))
            yield tuple(x[at] for x in inputs), out[at]


def in_pieces(reference: Callable[[tuple[NDArray, ...], Attrs], NDArray]) -> CpuKernel:
    """Return a CPU kernel that applies the reference of an elementwise op to pieces."""

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        out[...] = reference(inputs, attrs)

    return CpuKernel(compute, cut_elements)
