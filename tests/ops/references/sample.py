"""Oracles of grid_sample and affine_grid: the ONNX reference evaluator."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.function_call import FunctionCall
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle
from .node import run_node


def grid_sample(case: OpSample) -> NDArray:
    x, grid = case.inputs
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if 0 in shape:  # of which the reference forgets the shape
        return np.empty(shape, x.dtype)
    attrs = dict(case.attrs) | {"align_corners": int(bool(case.attrs["align_corners"]))}
    if not np.isfinite(grid).all():
        return beyond_numbers(case)
    if case.name.endswith("beside infinity"):  # which the reference multiplies by 0
        x = np.nan_to_num(x, nan=0.0, posinf=0.0)
    if case.attrs["align_corners"]:  # it divides by the length of an axis when it reflects
        grid = np.where(np.asarray(x.shape[:1:-1]) == 1, np.float32(0), grid)
        for axis in range(2, x.ndim):
            x = np.repeat(x, 3, axis) if x.shape[axis] == 1 else x
    wide = x.astype(np.float64) if x.dtype == np.float32 else x
    return run_node("GridSample", (wide, grid), attrs, opset=20)[0].astype(x.dtype)


def beyond_numbers(case: OpSample) -> NDArray:
    """What ONNX leaves open: NaN gives NaN or, among ints, 0, and so does a reflected infinity;
    others are as far outside as a large number.
    """
    x, grid = case.inputs
    undefined = np.isnan(grid).any(-1)
    if case.attrs["padding_mode"] == "reflection":
        undefined |= np.isinf(grid).any(-1)
    finite = np.nan_to_num(grid, nan=0.0, posinf=9.0, neginf=-9.0)
    result = grid_sample(OpSample(case.op, (x, finite), case.attrs))
    nothing = np.nan if x.dtype == np.float32 else 0
    return np.where(undefined[:, None], nothing, result).astype(x.dtype)


def affine_grid(case: FunctionSample) -> NDArray:
    assert isinstance(case, FunctionCall)
    size = np.asarray(case.arguments["size"], np.int64)
    attrs = {"align_corners": int(case.arguments["align_corners"])}
    return run_node("AffineGrid", (case.inputs[0], size), attrs, opset=20)[0]


ORACLES: dict[str, Oracle] = {"grid_sample": grid_sample}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {"affine_grid": affine_grid}
