"""Rules for Fourier transforms: matmul with matrices of cosines and sines.

Complex numbers are two columns, so one real matmul computes the whole transform.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ....common.dtypes import INT32, NDArray, normalize_axis, numpy_dtype
from ....ir.tensor import Tensor, constant
from ....ops import gather, matmul, reshape, transpose
from ....ops import slice as slice_
from ..nodes.node import NodeContext
from ..nodes.values import known
from .registry import rule

MAX_ELEMENTS = 1 << 23
"""Maximum elements of a matrix; longer transforms use an FFT on the CPU."""


@lru_cache(maxsize=8)
def _matrix(samples: int, parts: int, length: int, results: int, dtype: str) -> NDArray:
    """Return the DFT matrix (samples * parts, results * 2) for real or complex samples (parts 1 or
    2).
    """
    cos, sin = _waves(samples, length, results)
    rows = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)][:parts], 1)
    return rows.reshape(samples * parts, results * 2).astype(numpy_dtype(dtype))


@lru_cache(maxsize=8)
def _inverse_matrix(samples: int, parts: int, length: int, dtype: str) -> NDArray:
    """Return the inverse DFT matrix to real values (samples * parts, length).

    The samples are one half of the spectrum; the other half is its conjugate.
    """
    cos, sin = _waves(samples, length, length)
    twice = np.full((samples, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[length // 2 :] = 1.0
    rows = np.stack([twice * cos, -twice * sin][:parts], 1) / length
    return rows.reshape(samples * parts, length).astype(numpy_dtype(dtype))


def _waves(samples: int, length: int, results: int) -> tuple[NDArray, NDArray]:
    angles = 2 * np.pi / length * (np.outer(np.arange(samples), np.arange(results)) % length)
    return np.cos(angles), np.sin(angles)


def transformed(
    n: NodeContext, x: Tensor, axis: int, length: int, onesided: bool, inverse: bool = False
) -> Tensor:
    """Return the DFT of x (..., parts) along an axis, or the inverse from a one-sided spectrum."""
    parts, dtype = x.shape[-1], x.dtype
    n.require(parts in (1, 2), f"{parts} numbers for each value")
    n.require(length > 0, "a transform of no values")
    order = [a for a in range(x.rank - 1) if a != axis]
    moved = transpose(x, (*order, axis, x.rank - 1))
    half = length // 2 + 1
    used = min(half if inverse else length, x.shape[axis])
    results = half if onesided and not inverse else length
    n.require(used * results * 2 * parts <= MAX_ELEMENTS, f"{length} values")
    n.require_room((used, parts, results, 2), dtype)
    if used < x.shape[axis]:
        moved = slice_(moved, 0, used, -2)
    if inverse:
        matrix, columns = _inverse_matrix(used, parts, length, dtype), 1
    else:
        matrix, columns = _matrix(used, parts, length, results, dtype), 2
    rest = moved.shape[:-2]
    flat = reshape(moved, (*rest, used * parts))
    result = matmul(flat, n.lowering.tensor(known(matrix)))
    result = reshape(result, (*rest, result.shape[-1] // columns, columns))
    places = list(range(x.rank - 2))
    places.insert(axis, x.rank - 2)
    return transpose(result, (*places, x.rank - 1))


@rule("DFT", rounds=True)
def dft(n: NodeContext) -> Tensor:
    """Until opset 19 the axis was an attribute."""
    x = n.tensor(0)
    axis = n.attr("axis", 1) if n.version < 20 else int(n.number(2, -2))
    axis = normalize_axis("dft", axis, x.rank)
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    # numpy's FFT leaves rounding errors for sums of 0, which ONNX's own tests expect
    n.require(not inverse or onesided, "complex results of an inverse transform")
    size = x.shape[axis]
    length = int(n.number(1, 2 * (size - 1) if inverse and onesided else size))
    return transformed(n, x, axis, length, onesided, inverse)


@rule("STFT", rounds=True)
def stft(n: NodeContext) -> Tensor:
    """Operands: a signal (batch, length, parts), the step, a window, the frame length.

    A real signal may omit the axis of parts, as in onnxruntime.
    """
    x, step = n.tensor(0), int(n.number(1))
    if x.rank == 2:
        x = reshape(x, (*x.shape, 1))
    window = n.optional(2)
    length = window.shape[0] if window is not None else int(n.number(3, x.shape[1]))
    frames = (x.shape[1] - length) // step + 1
    n.require(frames > 0 and step > 0, f"no frame of {length} in {x.shape}")
    n.require_room((frames, length), INT32)
    places = np.arange(frames)[:, None] * step + np.arange(length)
    cut = gather(x, constant(places.astype(np.int32)), 1)
    if window is not None:
        cut = cut * reshape(window, (length, 1))
    return transformed(n, cut, 2, length, bool(n.attr("onesided", 1)))
