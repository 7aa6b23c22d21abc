"""Rules for Fourier transforms: products with matrices of cosines and sines.

The complex numbers of a signal are two columns, so one real product is the whole transform.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ...ops import gather, matmul, reshape, transpose
from ...ops import slice as slice_
from ...ops.tensor import Tensor, constant
from ...types import NDArray, normalize_axis, numpy_dtype
from .registry import rule

if TYPE_CHECKING:
    from ..node import NodeContext

MOST_ELEMENTS = 1 << 24
"""Of a matrix; longer transforms are for a fast one, on the host."""


@lru_cache(maxsize=32)
def _matrix(
    given: int, parts: int, length: int, inverse: bool, onesided: bool, dtype: str
) -> NDArray:
    """Returns the transform of `given` places of `parts` numbers, real and perhaps imaginary.

    (given * parts, results * 2), or one column for each result where they are real.
    """
    half = length // 2 + 1
    results = half if onesided and not inverse else length
    turns = np.outer(np.arange(given), np.arange(results)) % length
    angles = 2 * np.pi * turns / length
    sign = 1 if inverse else -1
    cos, sin = np.cos(angles), sign * np.sin(angles)
    if onesided and inverse:  # the other half is the conjugate of this one
        twice = np.full((given, 1), 2.0)
        twice[0] = 1.0
        if length % 2 == 0:
            twice[half - 1 :] = 1.0
        rows = np.stack([twice * cos, -twice * sin][:parts], 1)
        made = rows.reshape(given * parts, results) / length
    else:
        rows = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], 1)
        made = rows.reshape(given * parts, results * 2) / (length if inverse else 1)
    return made.astype(numpy_dtype(dtype))


def transformed(
    n: NodeContext, x: Tensor, axis: int, length: int, inverse: bool, onesided: bool
) -> Tensor:
    """Returns the transform of x (..., parts) along an axis."""
    parts = x.shape[-1]
    n.require(parts in (1, 2), f"{parts} numbers for each value")
    n.require(length > 0, "a transform of no values")
    order = [a for a in range(x.rank - 1) if a != axis]
    moved = transpose(x, (*order, axis, x.rank - 1))
    most = length // 2 + 1 if inverse and onesided else length
    used = min(most, x.shape[axis])
    n.require(used * length * 2 * parts <= MOST_ELEMENTS, f"{length} values")
    if used < x.shape[axis]:
        moved = slice_(moved, 0, used, -2)
    matrix = n.lowering.context.tensor(_matrix(used, parts, length, inverse, onesided, x.dtype))
    rest = moved.shape[:-2]
    made = matmul(reshape(moved, (*rest, used * parts)), matrix)
    columns = 1 if inverse and onesided else 2
    made = reshape(made, (*rest, made.shape[-1] // columns, columns))
    back = [*order]
    back.insert(axis, -1)
    places = [order.index(a) if a >= 0 else x.rank - 2 for a in back]
    return transpose(made, (*places, x.rank - 1))


@rule("DFT", rounds=True)
def dft(n: NodeContext) -> Tensor:
    """Until opset 19 the axis was an attribute."""
    x = n.tensor(0)
    given = n.attr("axis", 1) if n.version < 20 else int(n.number(2, -2))
    axis = normalize_axis("dft", given, x.rank)
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    size = x.shape[axis]
    length = int(n.number(1, 2 * (size - 1) if inverse and onesided else size))
    return transformed(n, x, axis, length, inverse, onesided)


@rule("STFT", rounds=True)
def stft(n: NodeContext) -> Tensor:
    """Operands: a signal (batch, length, parts), the step, a window, the length of a frame."""
    x, step = n.tensor(0), int(n.number(1))
    window = n.optional(2)
    length = window.shape[0] if window is not None else int(n.number(3, x.shape[1]))
    frames = (x.shape[1] - length) // step + 1
    n.require(frames > 0 and step > 0, f"no frame of {length} in {x.shape}")
    places = np.arange(frames)[:, None] * step + np.arange(length)
    cut = gather(x, constant(places.astype(np.int32)), 1)
    if window is not None:
        cut = cut * reshape(window, (length, 1))
    return transformed(n, cut, 2, length, False, bool(n.attr("onesided", 1)))
