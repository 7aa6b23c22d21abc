"""Oracles of the layout ops."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import FunctionOracle, Oracle, by_onnx, run_onnx


def sliced(case: OpSample) -> NDArray:
    keys: list[slice] = [slice(None)] * case.inputs[0].ndim
    fields = (case.attrs[n] for n in ("axes", "starts", "stops", "steps"))
    for axis, start, stop, step in zip(*fields, strict=True):  # type: ignore[arg-type]
        keys[axis] = slice(start, stop, step)
    return case.inputs[0][tuple(keys)]


def transpose(case: OpSample) -> NDArray:
    if not case.attrs["axes"]:
        return case.inputs[0]
    return run_onnx("Transpose", case.inputs, {"perm": case.attrs["axes"]})


ORACLES: dict[str, Oracle] = {
    "reshape": lambda case: np.reshape(case.inputs[0].ravel(), case.expected().shape),
    "transpose": transpose,
    "slice": sliced,
    "concat": by_onnx("Concat", ("axis",)),
    "expand": lambda case: case.inputs[0] + np.zeros(case.attrs["shape"], case.inputs[0].dtype),  # type: ignore[arg-type]
}

FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "expand_dims": lambda case: np.expand_dims(case.inputs[0], int(case.name)),
    "squeeze": lambda case: np.squeeze(case.inputs[0], (0, -2) if case.name else None),
}
