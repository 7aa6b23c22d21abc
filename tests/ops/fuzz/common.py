"""What draws are made of: shapes, axes and arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample, bools, floats, ints

Pick = Callable[[st.SearchStrategy[Any]], Any]
"""Hypothesis' draw function: a strategy -> one of its values."""
Draw = Callable[[Pick], OpSample]


def shapes(
    max_rank: int = 5, max_side: int = 7, min_side: int = 0, min_rank: int = 0
) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with few elements, some of them empty."""
    sides = st.one_of(st.integers(max(1, min_side), max_side), st.just(min_side or 1))
    return st.lists(sides, min_size=min_rank, max_size=max_rank).map(tuple)


def array(pick: Pick, dtype: str, shape: tuple[int, ...], scale: float = 2.0) -> NDArray:
    """Ordinary values; hypothesis draws the seed only, as drawing every value takes long."""
    seed = pick(st.integers(0, 999))
    if dtype == "bool":
        return bools(*shape, seed=seed)
    if dtype in ("int32", "int64", "uint32"):
        return ints(*shape, seed=seed, low=0 if dtype == "uint32" else -100).astype(dtype)
    return floats(*shape, seed=seed, scale=scale).astype(dtype)


def broadcasting(pick: Pick, count: int, max_rank: int = 8) -> list[tuple[int, ...]]:
    """Shapes that broadcast with each other, of any ranks."""
    target = pick(shapes(max_rank, 3))
    out = []
    for _ in range(count):
        start = pick(st.integers(0, len(target)))
        out.append(tuple(1 if pick(st.booleans()) else side for side in target[start:]))
    return out


def axes_of(pick: Pick, rank: int) -> tuple[int, ...]:
    """Any of the axes, sorted."""
    return tuple(sorted(pick(st.sets(st.integers(0, rank - 1))))) if rank else ()


def finite(x: NDArray) -> NDArray:
    """Without anything but numbers."""
    return np.nan_to_num(x, nan=0.0, posinf=1.0, neginf=-1.0)
