"""Rotary positions: the angles by which pairs of each head are turned at each position."""

from __future__ import annotations

import numpy as np

from ....errors import ModelFormatError
from ....types import NDArray
from ..hyper import Hyper, Rope


def angle_tables(
    hyper: Hyper, rope: Rope, slowed: NDArray | None, length: int
) -> tuple[NDArray, NDArray]:
    """Returns cos and sin of the angles at positions 0, 1, ..., each (length, dims / 2).

    slowed: what the speed of each pair is divided by, as Llama 3.1 has it in its file.

    Raises:
        ModelFormatError: positions are scaled in a way that is not known.
    """
    if rope.scaling not in ("none", "linear") or rope.dims % 2:
        raise ModelFormatError(
            f"[gguf] key '{hyper.architecture}.rope.scaling.type': expected none or linear with an "
            f"even number of dimensions, got {rope.scaling!r} with {rope.dims}"
        )
    rates = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    if rope.scaling == "linear":
        rates /= rope.factor
    if slowed is not None:
        rates /= slowed
    angles = np.arange(length, dtype=np.float64)[:, None] * rates
    cos, sin = (rope.attention_factor * turn(angles) for turn in (np.cos, np.sin))
    return cos.astype(np.float32), sin.astype(np.float32)
