"""Oracles of chains: those of their steps, one after the other."""

from __future__ import annotations

import numpy as np

import references
from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle


def fused_elementwise(case: OpSample) -> NDArray:
    values = list(case.inputs)
    constants, steps = case.attrs["constants"], case.attrs["steps"]
    assert isinstance(constants, tuple) and isinstance(steps, tuple)
    float_type = next((x.dtype for x in values if x.dtype.kind == "f"), np.dtype(np.float32))
    for _, word in constants:  # type: ignore[misc]
        values.append(np.uint32(word).view(np.float32).astype(float_type))
    for op, registers, attrs in steps:  # type: ignore[misc]
        one = OpSample(str(op), tuple(values[r] for r in registers), dict(attrs))  # type: ignore[arg-type,call-overload,union-attr,index]
        built = np.asarray(references.ORACLES[one.op](one))
        values.append(built.astype(float_type) if built.dtype.kind == "f" else built)
    return np.asarray(values[-1])


ORACLES: dict[str, Oracle] = {"fused_elementwise": fused_elementwise}
