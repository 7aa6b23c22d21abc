"""onnxruntime's own ops against numbers that are known without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.types import NDArray

pytest.importorskip("onnx")
from onnx import ModelProto, TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"


def node_model(
    op: str,
    inputs: Sequence[NDArray | None],
    *,
    domain: str = MICROSOFT,
    opset: int = 17,
    results: int = 1,
    fixed: Sequence[int] = (),
    **attrs: Any,
) -> ModelProto:
    """One node. fixed: operands that are initializers."""
    given = [(i, f"x{i}", a) for i, a in enumerate(inputs) if a is not None]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain=domain, **attrs)],
        "one",
        [
            helper.make_tensor_value_info(
                name,
                TensorProto.STRING
                if a.dtype == object
                else helper.np_dtype_to_tensor_dtype(a.dtype),
                a.shape,
            )
            for i, name, a in given
            if i not in fixed
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(a, name) for i, name, a in given if i in fixed],
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(d, 1) for d in (MICROSOFT, NCHWC)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(op: str, *inputs: NDArray | None, fixed: Sequence[int] = (), **attrs: Any) -> list[NDArray]:
    """Returns the results of one node on the CPU."""
    model = node_model(op, inputs, fixed=fixed, **attrs)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in fixed}
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.load(model))(**feeds)
        return [np.asarray(found[o.name]) for o in model.graph.output]


def floats(*values: Any) -> NDArray:
    return np.array(values, np.float32)


# -- the default domain ----------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 14, 16])
def test_layer_normalization_below_opset_17(opset: int) -> None:
    x = floats([1, 2, 3, 6], [0, 0, 0, 4])
    scale, shift = floats(1, 1, 2, 1), floats(0, 0, 1, 0)
    (y,) = run("LayerNormalization", x, scale, shift, domain="", opset=opset)
    centred = x - x.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * scale + shift
    np.testing.assert_allclose(y, want, rtol=1e-5)


def test_unknown_ops_of_the_default_domain_stay_unknown() -> None:
    with pytest.raises(vs.ModelFormatError, match="expected an op of domain 'ai.onnx' at opset 14"):
        vs.load(node_model("GroupNormalization", [floats(1), floats(1)], domain="", opset=14))


def test_ops_that_onnx_dropped() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    (y,) = run("Crop", x, domain="", opset=9, border=[1, 1, 1, 0])
    np.testing.assert_array_equal(y[0, 0], [[5, 6], [9, 10]])
    (y,) = run("Affine", x, domain="", opset=9, alpha=2.0, beta=1.0)
    np.testing.assert_array_equal(y, x * 2 + 1)
    (y,) = run("ImageScaler", x, domain="", opset=8, scale=0.5, bias=[3.0])
    np.testing.assert_array_equal(y, x / 2 + 3)
