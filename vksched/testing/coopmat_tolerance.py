"""What cooperative matrices may lose, beside the rounding that every kernel has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..common.dtypes import NDArray
from ..ops.lowering.variants import COOPMAT
from ..ops.quantized.gguf_formats import unpacked
from .op_cases.op_sample import OpSample

CUT = 2.0**-22
"""Of the sum so far and of what a step adds to it. Units may cut off digits where others round: one
unit in the last place as they bring products to one exponent, one of the sum (H100, float32).
"""
WEIGHT = 2.0**-10
"""Of a weight of attention, which units take as float16: where a driver cuts digits off."""


def coopmat_tolerance(case: OpSample, variant: str) -> NDArray | float:
    """Return by how much each value of a result may be off for this; 0 of all other variants.

    Of a product: the digits that each step along k cuts off. Of attention: the share of weights,
    times the sum of weights times the magnitudes of values.
    """
    if COOPMAT not in variant:
        return 0.0
    if case.op in ("matmul", "quantized_linear"):
        shape = variant.partition(COOPMAT)[2].split()[0]
        return CUT * _sums_along_k(*_factors(case), int(shape.split("x")[2]))
    if case.op == "attention":
        q, k, v, *rest = case.inputs
        around = replace(case, inputs=(q, k, np.abs(v), *rest)).expected()
        return WEIGHT * np.nan_to_num(around.astype(np.float64), nan=0.0, posinf=0.0)
    return 0.0


def _factors(case: OpSample) -> tuple[NDArray, NDArray]:
    """Return both factors of a product as they are multiplied, in float64."""
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
    """Return the magnitudes of the sum before each step and of the products in it, added up."""
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*shape, left.shape[-2], right.shape[-1]))
    out = np.zeros_like(total)
    with np.errstate(all="ignore"):
        for at in range(0, left.shape[-1], step):
            a, b = left[..., at : at + step], right[..., at : at + step, :]
            out += np.abs(total) + np.matmul(np.abs(a), np.abs(b))
            total += np.matmul(a, b)
    return np.nan_to_num(out, nan=0.0, posinf=0.0)
