"""Oracles of sorting: Python's sorted, which is stable; topk: ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle

onnx = pytest.importorskip("onnx")


def by_sorted(values: bool) -> Oracle:
    def oracle(case: OpSample) -> NDArray:
        axis, sign = int(case.attrs["axis"]), -1 if case.attrs["descending"] else 1  # type: ignore[arg-type]
        rows = np.moveaxis(case.inputs[0], axis, -1)
        expected = case.expected()
        keep = expected.shape[axis]

        def order(row: list[float]) -> list[int]:
            keys = [(sign * (v != v), 0 if v != v else sign * v) for v in row]
            return sorted(range(len(row)), key=keys.__getitem__)[:keep]

        picked = [
            [row[i] for i in order(row)] if values else order(row)
            for row in rows.reshape(-1, rows.shape[-1] or 1).tolist()
        ]
        shape = (*rows.shape[:-1], keep)
        out = np.asarray(picked, expected.dtype).reshape(shape)
        return np.moveaxis(out, -1, axis)

    return oracle


def topk(case: FunctionSample) -> tuple[NDArray, ...]:
    from onnx.reference import ReferenceEvaluator

    k, axis, largest = map(int, case.name.split())
    x = case.inputs[0]
    info = onnx.helper.make_tensor_value_info
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    int64 = onnx.TensorProto.INT64
    node = onnx.helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest)
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [info("x", kind, x.shape), info("k", int64, (1,))],
        [info("v", kind, None), info("i", int64, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    values, indices = ReferenceEvaluator(model).run(None, {"x": x, "k": np.array([k])})
    return values, indices


ORACLES: dict[str, Oracle] = {"sort": by_sorted(True), "argsort": by_sorted(False)}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {"topk": topk}
