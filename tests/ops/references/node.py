"""One ONNX node of any version, with operands left out and several results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

from .common import onnx


def run_node(
    op_type: str,
    inputs: Sequence[NDArray | None],
    attrs: dict[str, Any],
    opset: int,
    results: int = 1,
) -> list[NDArray]:
    """Return the results of the ONNX reference evaluator. inputs: None is left out."""
    from onnx.reference import ReferenceEvaluator

    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(results)]
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    values = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
        )
        for n, x in feeds.items()
    ]
    built = [onnx.helper.make_tensor_value_info(n, 0, None) for n in outputs]
    node = onnx.helper.make_node(op_type, names, outputs, **attrs)
    graph = onnx.helper.make_graph([node], "one", values, built)
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]
