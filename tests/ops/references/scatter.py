"""Oracles of the scatter ops: plain loops, in double precision for sums and products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import FunctionOracle, Oracle, run_onnx


def combine(how: str, old: Any, new: Any) -> Any:
    if how == "none":
        return new
    if how in ("add", "mul"):
        with np.errstate(all="ignore"):
            return old + new if how == "add" else old * new
    if old != old or new != new:
        return math.nan
    return max(old, new) if how == "max" else min(old, new)


def back(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return Python numbers as a dtype, wrapped where it has too few bits."""
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        masked = np.asarray([int(v) % 2**bits for v in values.reshape(-1)], f"uint{bits}")
        return masked.view(dtype).reshape(values.shape)
    with np.errstate(all="ignore"):
        return (
            values.astype(np.float64).astype(dtype) if dtype.kind == "f" else values.astype(dtype)
        )


def scatter_elements(case: OpSample) -> NDArray:
    data, indices, updates = case.inputs
    axis, how = int(case.attrs["axis"]), str(case.attrs["reduction"])  # type: ignore[arg-type]
    out = data.astype(object)
    if how == "none" and indices.shape == data.shape and indices.size < 100:
        # the ONNX reference knows these
        positive = np.where(indices < 0, indices + data.shape[axis], indices).astype(np.int64)
        return run_onnx("ScatterElements", (data, positive, updates), {"axis": axis})
    for at in np.ndindex(*indices.shape):
        to = (*at[:axis], int(indices[at]), *at[axis + 1 :])
        out[to] = combine(how, out[to], updates[at].item())
    return back(out, data.dtype)


def scatter_nd(case: OpSample) -> NDArray:
    data, indices, updates = case.inputs
    how = str(case.attrs["reduction"])
    out = data.astype(object)
    rest = data.shape[indices.shape[-1] :]
    for at in np.ndindex(*indices.shape[:-1]):
        first = tuple(indices[at].tolist())
        for inner in np.ndindex(*rest):
            to = (*first, *inner)
            out[to] = combine(how, out[to], updates[(*at, *inner)].item())
    return back(out, data.dtype)


ORACLES: dict[str, Oracle] = {
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
}


def scatter(case: Any) -> NDArray:
    out = np.array(case.inputs[0])
    np.put_along_axis(out, case.inputs[1], case.inputs[2], 1)
    return out


FUNCTION_ORACLES: dict[str, FunctionOracle] = {"scatter": scatter}
