"""How numpy runs a call well: into memory that it is given, in pieces that fit a cache and may go
to several threads.
"""

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
"""Elements of one piece. Between the passes over it a thread waits for the interpreter lock, some
10 us where another one holds it: a pass has to take longer, though the last cache holds the piece
and not the second one.
"""

LONG = 1 << 23
"""Operations of a call that several threads share, though it has few elements: some 0.1 ms."""

SHARES = 2 * usable_cores() if usable_cores() > 1 else 1
"""Pieces at most of a call of which each piece reads all of an operand anew."""

LONG_ROW = 1 << 12
"""Values of a row beyond which a plain sum in float32 loses digits that one in pairs keeps."""

Piece = tuple[tuple[NDArray, ...], NDArray]
"""Parts of the operands, and the part of the result that they make."""
Compute = Callable[[tuple[NDArray, ...], "Attrs", NDArray], None]
Cut = Callable[[tuple[NDArray, ...], "Attrs", NDArray], Iterator[Piece]]


def is_small(inputs: tuple[NDArray, ...], out: NDArray) -> bool:
    """Whether a call is one piece."""
    return max([out.size, *[x.size for x in inputs]]) <= BLOCK


def rows_of_piece(rows: int, elements: int) -> int:
    """Return how many rows make a piece, of so many rows with so many elements in all; pieces are
    of one size, as threads end together then.
    """
    pieces = -(-elements // BLOCK)
    return max(1, -(-rows // max(1, pieces)))


def sum_rows(x: NDArray) -> NDArray:
    """Return the sums over the last axis, which keeps a size of 1: of short rows as a product, the
    fastest way, of long ones in pairs, as a product adds one value after the other.
    """
    if x.shape[-1] > LONG_ROW:
        return np.asarray(np.add.reduce(x, axis=-1, keepdims=True))
    return np.asarray(np.matmul(x, np.ones((x.shape[-1], 1), x.dtype)))


def whole(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """One piece: what is not worth cutting."""
    yield inputs, out


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """How numpy runs an op, where it can do better than its reference.

    compute: (operands, attributes, result) -> None writes all of the result, which shares no memory
        with the operands; as exact as the reference, whatever the pieces are.
    cut: (operands, attributes, result) -> the pieces, independent of each other, that together make
        the call.
    least: elements of the largest operand, or of the result, up to which a call is not cut.
    fused: as `compute`, with the epilogue that the attributes name, whose residual is the last
        operand; returns False, with nothing written, where its steps have to follow. Then `cut`
        cuts calls with an epilogue, too. None: there never is.
    """

    compute: Compute
    cut: Cut = whole
    least: int = BLOCK
    fused: Callable[[tuple[NDArray, ...], Attrs, NDArray], bool] | None = None


def cut_elements(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Cut an elementwise call, whose operands broadcast to the result."""
    if all(x.shape == out.shape and x.flags.c_contiguous for x in inputs):
        flat, line = tuple(x.reshape(-1) for x in inputs), out.reshape(-1)
        step = rows_of_piece(line.size, line.size)
        for start in range(0, line.size, step):
            piece = slice(start, start + step)
            yield tuple(x[piece] for x in flat), line[piece]
        return
    yield from cut_leading(tuple(np.broadcast_to(x, out.shape) for x in inputs), out, out.ndim)


def cut_leading(inputs: tuple[NDArray, ...], out: NDArray, axes: int) -> Iterator[Piece]:
    """Cuts along the first `axes` axes, which all operands have as the result has them, as far as
    pieces stay near a block; they keep their rank.
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
    """The reference of an elementwise op, on pieces."""

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        out[...] = reference(inputs, attrs)

    return CpuKernel(compute, cut_elements)
