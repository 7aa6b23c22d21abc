"""Additional tolerance for kernels with cooperative matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..common.dtypes import NDArray
from ..ops.lowering.variants import COOPMAT
from ..ops.quantized.gguf_formats import unpacked
from .op_cases.op_sample import OpSample

CUT = 2.0**-22
"""Error relative to the accumulator and to the terms that a step adds. Units may truncate instead
of rounding: one unit in the last place when products are aligned to one exponent, one of the sum
(H100, float32).
"""
VALUES = {"attention": (2,), "attention_with_kvcache": (2, 5, 7)}
"""Operands of attention that are values: those of the cache, new ones and pending ones."""
WEIGHT = 2.0**-10
"""Error of an attention weight, which units read as float16: some drivers truncate."""


def coopmat_tolerance(case: OpSample, variant: str) -> NDArray | float:
    """Return the tolerance of each value of a result for this; 0 for other variants.

    For a matmul: the truncation error of each step along k. For attention: the error of the
    weights, times the weighted sum of the magnitudes of values.
    """
    if COOPMAT not in variant:
        return 0.0
    if case.op in ("matmul", "quantized_linear"):
        shape = variant.partition(COOPMAT)[2].split()[0]
        return CUT * _sums_along_k(*_factors(case), int(shape.split("x")[2]))
    if case.op in VALUES:
        inputs = (
            np.abs(x) if i in VALUES[case.op] and x.dtype.kind == "f" else x
            for i, x in enumerate(case.inputs)
        )
        around = replace(case, inputs=tuple(inputs)).expected()
        return WEIGHT * np.nan_to_num(around.astype(np.float64), nan=0.0, posinf=0.0)
    return 0.0


def _factors(case: OpSample) -> tuple[NDArray, NDArray]:
    """Return both operands of a matmul as they are multiplied, in float64."""
    left, right = case.inputs[:2]
    if case.op == "quantized_linear":
        weight = unpacked(str(case.attrs["format"]), right, left.shape[-1])
        return left.astype(np.float64), weight.astype(np.float64).T
    left, right = (
        np.swapaxes(x, -1, -2) if case.attrs[f"transpose_{name}"] else x
        for name, x in zip("ab", (left, right), strict=True)
    )
    return left.astype(np.float64), right.astype(np.float64)


def _sums_along_k(left: NDArray, right: NDArray, step: int) -> NDArray:
    """Return the sum over k steps of the magnitudes of accumulator and products."""
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*shape, left.shape[-2], right.shape[-1]))
    out = np.zeros_like(total)
    with np.errstate(all="ignore"):
        for at in range(0, left.shape[-1], step):
            a, b = left[..., at : at + step], right[..., at : at + step, :]
            out += np.abs(total) + np.matmul(np.abs(a), np.abs(b))
            total += np.matmul(a, b)
    return np.nan_to_num(out, nan=0.0, posinf=0.0)
