"""Oracles of the norms of convolutional networks: the ONNX reference, where it is right."""

from __future__ import annotations

from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.function_call import FunctionCall
from vksched.testing.op_cases.op_sample import FunctionSample

from .common import FunctionOracle
from .node import run_node


def of(case: FunctionSample) -> tuple[list[NDArray], dict[str, Any]]:
    """The operands as float64, and the other arguments."""
    assert isinstance(case, FunctionCall)
    return [x.astype(np.float64) for x in case.inputs], dict(case.arguments)


def affine(operands: list[NDArray]) -> list[NDArray]:
    """With the scale and shift that were left out."""
    channels = operands[0].shape[1]
    return operands + [np.ones(channels), np.zeros(channels)][len(operands) - 1 :]


def group_norm(case: FunctionSample) -> NDArray:
    operands, values = of(case)
    if operands[0].size == 0:
        return case.inputs[0]
    attrs = {"num_groups": values["groups"], "epsilon": values.get("eps", 1e-5), "stash_type": 11}
    result = run_node("GroupNormalization", affine(operands), attrs, opset=21)[0]
    return result.astype(case.inputs[0].dtype)


def instance_norm(case: FunctionSample) -> NDArray:
    operands, values = of(case)
    attrs = {"epsilon": values.get("eps", 1e-5)}
    result = run_node("InstanceNormalization", affine(operands), attrs, opset=6)[0]
    return result.astype(case.inputs[0].dtype)


def batch_norm(case: FunctionSample) -> NDArray:
    operands, values = of(case)
    attrs = {"epsilon": values.get("eps", 1e-5)}
    return run_node("BatchNormalization", operands, attrs, opset=15)[0].astype(case.inputs[0].dtype)


def batch_norm_training(case: FunctionSample) -> list[NDArray]:
    operands, values = of(case)
    attrs = {"epsilon": values.get("eps", 1e-5), "momentum": values.get("momentum", 0.9)}
    results = run_node("BatchNormalization", operands, attrs | {"training_mode": 1}, 15, 3)
    return [y.astype(case.inputs[0].dtype) for y in results]


def lp_normalize(case: FunctionSample) -> NDArray:
    """By numpy.linalg: the ONNX reference sums without absolute values."""
    (x,), values = of(case)
    norm = np.linalg.norm(x, values["p"], values["axis"], keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0).astype(
            case.inputs[0].dtype
        )


def mean_variance_normalize(case: FunctionSample) -> NDArray:
    (x,), values = of(case)
    attrs = {"axes": [a % x.ndim for a in values["axes"]]} if "axes" in values else {}
    return run_node("MeanVarianceNormalization", [x.astype(np.float32)], attrs, opset=13)[0].astype(
        case.inputs[0].dtype
    )


def local_response_norm(case: FunctionSample) -> NDArray:
    """In plain Python: the ONNX reference counts the batch for the channels."""
    (x,), values = of(case)
    size, alpha = values["size"], values.get("alpha", 1e-4)
    beta, bias = values.get("beta", 0.75), values.get("bias", 1.0)
    before, after = (size - 1) // 2, -(-(size - 1) // 2)
    out = np.empty_like(x)
    for c in range(x.shape[1]):
        squares = sum(x[:, i] ** 2 for i in range(x.shape[1]) if c - before <= i <= c + after)
        out[:, c] = x[:, c] / (bias + alpha / size * squares) ** beta
    return out.astype(case.inputs[0].dtype)


FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "batch_norm": batch_norm,
    "batch_norm_training": batch_norm_training,
    "lp_normalize": lp_normalize,
    "mean_variance_normalize": mean_variance_normalize,
    "local_response_norm": local_response_norm,
}
