"""Oracles of the reductions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle, run_onnx, with_nan

scipy_special = pytest.importorskip("scipy.special")


def reduce(compute: Callable[..., Any]) -> Oracle:
    def oracle(case: OpSample) -> NDArray:
        x = case.inputs[0]
        axes = case.attrs["axes"]
        assert isinstance(axes, tuple)
        remaining = [a for a in range(x.ndim) if a not in axes]
        columns = math.prod(x.shape[int(a)] for a in axes)  # type: ignore[arg-type]
        rows = math.prod(x.shape[a] for a in remaining)
        flat = x.transpose((*remaining, *map(int, axes))).reshape(rows, columns).tolist()  # type: ignore[arg-type]
        dtype = x.dtype
        values = [compute(row) for row in flat]
        if dtype == np.int32:
            values = [(v + 2**31) % 2**32 - 2**31 for v in values]
        if dtype == np.uint32:
            values = [v % 2**32 for v in values]
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype).reshape(case.expected().shape)

    return oracle


def exact_sum(row: list[float]) -> float:
    if all(math.isfinite(v) for v in row):
        return math.fsum(row) if any(isinstance(v, float) for v in row) else sum(row)
    return sum(row)


def mean(row: list[float]) -> float:
    return exact_sum(row) / len(row) if row else math.nan


def product(row: list[float]) -> float:
    if any(isinstance(v, float) for v in row):
        return math.prod(row)
    total = 1
    for value in row:
        total = total * value % 2**64  # thousands of digits take long
    return total


def logsumexp(row: list[float]) -> float:
    with np.errstate(all="ignore"):
        return float(scipy_special.logsumexp(row)) if row else -math.inf


SHORT = 300


def variance(case: OpSample) -> NDArray:
    correction = case.attrs["correction"]
    assert isinstance(correction, float)

    def compute(row: list[float]) -> float:
        left = max(len(row) - correction, 0.0)
        if not row or not all(map(math.isfinite, row)):
            return math.nan
        # fractions are exact and slow
        values = [Fraction(v) for v in row] if len(row) <= SHORT else row
        add = sum if len(row) <= SHORT else math.fsum
        mean = add(values) / len(values)
        squares = add((v - mean) ** 2 for v in values)
        if left == 0:
            return math.inf if squares else math.nan
        return float(squares) / left

    return reduce(compute)(case)


def l2(case: FunctionSample) -> NDArray:
    x = case.inputs[0]
    axis, keep = (1, True) if case.name == "1" else (None, False)
    return np.asarray(np.linalg.norm(x.astype(np.float64), axis=axis, keepdims=keep), x.dtype)


def log_sum(case: FunctionSample) -> NDArray:
    attrs = {"keepdims": 1} if case.name == "1" else {"keepdims": 0}
    axes = (np.array([1]),) if case.name == "1" else ()
    x = case.inputs[0]
    return run_onnx("ReduceLogSum", (x.astype(np.float64), *axes), attrs).astype(x.dtype)


def deviation(case: FunctionSample) -> NDArray:
    rows = case.inputs[0] if case.name != "all" else case.inputs[0].reshape(1, -1)
    middle = statistics.stdev if case.name.endswith("less 1") else statistics.pstdev
    values = [middle(map(Fraction, row)) for row in rows.tolist()]
    return np.asarray(values, rows.dtype).reshape(case.expected()[0].shape)


ORACLES: dict[str, Oracle] = {
    "reduce_sum": reduce(exact_sum),
    "reduce_mean": reduce(mean),
    "reduce_prod": reduce(product),
    "reduce_max": reduce(with_nan(max)),
    "reduce_min": reduce(with_nan(min)),
    "reduce_any": reduce(any),
    "reduce_all": reduce(all),
    "reduce_l1": reduce(lambda row: exact_sum([abs(v) for v in row])),
    "reduce_sum_square": reduce(lambda row: exact_sum([v * v for v in row])),
    "reduce_logsumexp": reduce(logsumexp),
    "reduce_var": variance,
}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "reduce_l2": l2,
    "reduce_log_sum": log_sum,
    "reduce_std": deviation,
}
