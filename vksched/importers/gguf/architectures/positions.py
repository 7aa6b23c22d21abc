"""Rotary positions: the angles by which pairs of each head are turned at each position."""

from __future__ import annotations

import numpy as np

from ....errors import ModelFormatError
from ....types import NDArray
from ..hyper import Hyper


def angle_tables(hyper: Hyper, slowed: NDArray | None, length: int) -> tuple[NDArray, NDArray]:
    """Returns cos and sin of the angles at positions 0, 1, ..., each (length, dims / 2).

    slowed: what the speed of each pair is divided by, as Llama 3.1 has it in its file.

    Raises:
        ModelFormatError: positions are scaled in a way that is not known.
    """
    rope = hyper.rope
    if rope.scaling not in ("none", "linear") or rope.dims % 2:
        raise ModelFormatError(
            f"[gguf] key '{hyper.architecture}.rope.scaling.type': expected none or linear with an "
            f"even number of dimensions, got {rope.scaling!r} with {rope.dims}"
        )
    rates = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    if rope.scaling == "linear":
        rates /= rope.factor
    if slowed is not None:
        if not (slowed > 0).all():
            raise ModelFormatError("[gguf] tensor 'rope_freqs.weight': expected numbers over 0")
        rates /= slowed
    angles = np.arange(length, dtype=np.float64)[:, None] * rates
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
