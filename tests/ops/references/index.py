"""Oracles of the index ops: the ONNX reference, or plain loops where it wants equal shapes."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import FunctionOracle, Oracle, by_onnx, run_onnx


def gather_elements(case: OpSample) -> NDArray:
    table, indices = case.inputs
    axis = int(case.attrs["axis"])  # type: ignore[arg-type]
    out = np.empty(indices.shape, table.dtype)
    for at in np.ndindex(*indices.shape):
        out[at] = table[(*at[:axis], int(indices[at]), *at[axis + 1 :])]
    return out


def gather_nd(case: OpSample) -> NDArray:
    table, indices = case.inputs
    batch = int(case.attrs["batch_dims"])  # type: ignore[arg-type]
    if 0 in case.expected().shape or batch == 0:
        out = np.empty(case.expected().shape, table.dtype)
        for at in np.ndindex(*indices.shape[:-1]) if out.size else ():
            out[at] = table[(*at[:batch], *indices[at].tolist())]
        return out
    positive = np.where(indices < 0, indices + table.shape[batch:][: indices.shape[-1]], indices)
    wide = positive.astype(np.int64)
    return run_onnx("GatherND", (table, wide), {"batch_dims": batch})


def one_hot(case: OpSample) -> NDArray:
    indices, (off, on) = case.inputs
    depth, axis = case.attrs["depth"], case.attrs["axis"]
    assert isinstance(depth, int)
    assert isinstance(axis, int)
    lines = [
        [on if d in (i, i + depth) else off for d in range(depth)]
        for i in indices.reshape(-1).tolist()
    ]
    out = np.asarray(lines, case.inputs[1].dtype).reshape(*indices.shape, depth)
    return np.moveaxis(out, -1, axis)


ORACLES: dict[str, Oracle] = {
    "gather": by_onnx("Gather", ("axis",)),
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "one_hot": one_hot,
}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "embedding": lambda case: case.inputs[0][case.inputs[1]],
    "one_hot": lambda case: run_onnx(
        "OneHot",
        (case.inputs[0].astype(np.int64), np.asarray(5), np.asarray([-1, 2.5], np.float32)),
        {"axis": 0},
    ),
    "take_along_axis": lambda case: np.take_along_axis(*case.inputs, int(case.name)),
}
