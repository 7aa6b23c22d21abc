"""Oracles of running sums and products: Python's accumulate."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle


def running(compute: Callable[[Any, Any], Any], neutral: int) -> Oracle:
    def row_of(row: list[Any], case: OpSample) -> list[Any]:
        if case.attrs["reverse"]:
            row = row[::-1]
        out = list(accumulate(row, compute))
        if case.attrs["exclusive"]:
            out = [neutral, *out[:-1]]
        return out[::-1] if case.attrs["reverse"] else out

    def oracle(case: OpSample) -> NDArray:
        x = case.inputs[0]
        if x.size == 0:
            return x
        rows = np.moveaxis(x, int(case.attrs["axis"]), -1)  # type: ignore[arg-type]
        flat = rows.reshape(-1, rows.shape[-1]).tolist()
        values = [v for row in flat for v in row_of(row, case)]
        if x.dtype == np.int32:
            values = [(v + 2**31) % 2**32 - 2**31 for v in values]
        elif x.dtype == np.uint32:
            values = [v % 2**32 for v in values]
        with np.errstate(over="ignore"):
            out = np.asarray(values, x.dtype).reshape(rows.shape)
        return np.moveaxis(out, -1, int(case.attrs["axis"]))  # type: ignore[arg-type]

    return oracle


def wrap_after(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Keep whole numbers short, as thousands of digits take long."""
    return lambda a, b: compute(a, b) % 2**64 if isinstance(a, int) else compute(a, b)


ORACLES: dict[str, Oracle] = {
    "cumsum": running(operator.add, 0),
    "cumprod": running(wrap_after(operator.mul), 1),
}


def flattened(compute: Callable[..., Any]) -> FunctionOracle:
    def oracle(case: FunctionSample) -> NDArray:
        return np.asarray(compute(case.inputs[0].astype(np.float64)), np.float32)

    return oracle


FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "cumsum": flattened(np.cumsum),
    "cumprod": flattened(np.cumprod),
}
