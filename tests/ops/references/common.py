"""What oracles are made of: the ONNX reference evaluator, formulas on float64, plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

onnx = pytest.importorskip("onnx")

Oracle = Callable[[OpSample], NDArray]
FunctionOracle = Callable[[FunctionSample], "NDArray | tuple[NDArray, ...] | list[NDArray]"]


def by_onnx(op_type: str, names: tuple[str, ...] = (), **fixed: Any) -> Oracle:
    """The ONNX reference implementation of one node; names: attributes of the case to hand on."""

    def compute(case: OpSample) -> NDArray:
        return run_onnx(op_type, case.inputs, {n: case.attrs[n] for n in names} | fixed)

    return compute


def stored(case: OpSample, result: NDArray) -> NDArray:
    """The result in the type that the case stores it in."""
    with np.errstate(over="ignore"):
        return np.asarray(result).astype(case.attrs.get("dtype", "float32"))


def run_onnx(op_type: str, inputs: tuple[NDArray, ...], attrs: dict[str, Any]) -> NDArray:
    from onnx.reference import ReferenceEvaluator

    names = [f"x{i}" for i in range(len(inputs))]
    types = [onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    values = [
        onnx.helper.make_tensor_value_info(n, t, x.shape)
        for n, t, x in zip(names, types, inputs, strict=True)
    ]
    node = onnx.helper.make_node(op_type, names, ["y"], **attrs)
    out = onnx.helper.make_tensor_value_info("y", types[0], None)
    graph = onnx.helper.make_graph([node], "one", values, [out])
    opset = onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    with np.errstate(all="ignore"):
        result = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0]
    return np.asarray(result)


def in_double(compute: Callable[..., Any]) -> Oracle:
    """A formula on float64 operands."""

    def oracle(case: OpSample) -> NDArray:
        with np.errstate(all="ignore"):
            result = compute(*(x.astype(np.float64) for x in case.inputs))
            return np.asarray(result, np.float32)

    return oracle


def elementwise(compute: Callable[..., Any]) -> Oracle:
    """A Python function of Python numbers, value by value."""

    def oracle(case: OpSample) -> NDArray:
        arrays = np.broadcast_arrays(*case.inputs)
        flat = [compute(*values) for values in zip(*(a.ravel().tolist() for a in arrays))]  # noqa: B905
        dtype = case.expected().dtype
        if dtype == np.int32:
            flat = [(int(v) + 2**31) % 2**32 - 2**31 for v in flat]
        elif dtype == np.uint32:
            flat = [int(v) % 2**32 for v in flat]
        with np.errstate(over="ignore"):
            return np.asarray(flat, dtype).reshape(arrays[0].shape)

    return oracle


def float_or_int(on_floats: Oracle, on_ints: Oracle) -> Oracle:
    return lambda case: (on_floats if case.inputs[0].dtype == np.float32 else on_ints)(case)


def with_nan(compute: Callable[[list[float]], float]) -> Callable[[list[float]], float]:
    """numpy's max and min: NaN wins."""
    return lambda row: math.nan if any(v != v for v in row) else compute(row)
