"""Oracles of the reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vksched.cases.case import Case
from vksched.types import NDArray

from .common import Oracle, with_nan


def reduce(compute: Callable[..., Any]) -> Oracle:
    def oracle(case: Case) -> NDArray:
        x = case.inputs[0]
        axes = case.attrs["axes"]
        assert isinstance(axes, tuple)
        kept = [a for a in range(x.ndim) if a not in axes]
        columns = math.prod(x.shape[int(a)] for a in axes)  # type: ignore[arg-type]
        rows = math.prod(x.shape[a] for a in kept)
        flat = x.transpose((*kept, *map(int, axes))).reshape(rows, columns).tolist()  # type: ignore[arg-type]
        dtype = x.dtype
        values = [compute(row) for row in flat]
        if dtype == np.int32:
            values = [(v + 2**31) % 2**32 - 2**31 for v in values]
        return np.asarray(values, dtype).reshape(case.expected().shape)

    return oracle


def exact_sum(row: list[float]) -> float:
    if all(math.isfinite(v) for v in row):
        return math.fsum(row) if any(isinstance(v, float) for v in row) else sum(row)
    return sum(row)


def mean(row: list[float]) -> float:
    return exact_sum(row) / len(row) if row else math.nan


ORACLES: dict[str, Oracle] = {
    "reduce_sum": reduce(exact_sum),
    "reduce_mean": reduce(mean),
    "reduce_max": reduce(with_nan(max)),
    "reduce_min": reduce(with_nan(min)),
}
