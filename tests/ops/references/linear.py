"""Oracles of the relatives of matmul: numpy and ONNX in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.linalg.linear import GEMM, TENSORDOT
from vksched.testing.op_cases.op_sample import FunctionSample

from .common import FunctionOracle, run_onnx


def wide(case: FunctionSample) -> list[NDArray]:
    """The inputs in float64, integers as they are."""
    return [x.astype(np.float64) if x.dtype.kind == "f" else x for x in case.inputs]


def by_numpy(compute: Callable[..., Any]) -> FunctionOracle:
    return lambda case: np.asarray(compute(*wide(case)), case.inputs[0].dtype)


def gemm(case: FunctionSample) -> NDArray:
    onnx_names = {"transpose_a": "transA", "transpose_b": "transB"}
    attrs = {onnx_names.get(k, k): v for k, v in GEMM[case.name].items()}
    attrs = {k: int(v) if k in ("transA", "transB") else v for k, v in attrs.items()}
    result = run_onnx("Gemm", tuple(wide(case)), attrs)
    return np.asarray(result, case.inputs[0].dtype)


def linear(x: NDArray, weight: NDArray, *bias: NDArray) -> NDArray:
    return np.asarray(np.einsum("...k,nk->...n", x, weight) + (bias[0] if bias else 0))


def vecdot(case: FunctionSample) -> NDArray:
    a, b = wide(case)
    axis = 0 if case.name == "first axis" else -1
    return np.asarray((a * b).sum(axis), case.inputs[0].dtype)


def tensordot(case: FunctionSample) -> NDArray:
    return np.asarray(np.tensordot(*wide(case), TENSORDOT[case.name][2]), np.float32)


FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "gemm": gemm,
    "linear": by_numpy(linear),
    "outer": by_numpy(np.outer),
    "dot": by_numpy(np.dot),
    "vecdot": vecdot,
    "tensordot": tensordot,
}
