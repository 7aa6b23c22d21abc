"""A model of a file as tensors: its values, its parameters as states, what cannot be one graph."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.onnx.model import Model

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3)).astype(np.float32)
B = RNG.standard_normal(3).astype(np.float32)
X = RNG.standard_normal((5, 4)).astype(np.float32)


def model() -> Model:
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["h"]),
        helper.make_node("Add", ["h", "fc.bias"], ["s"]),
        helper.make_node("Exp", ["s"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    weights = [numpy_helper.from_array(a, n) for n, a in (("fc.weight", W), ("fc.bias", B))]
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return vs.load(model)


def formula(w: NDArray, b: NDArray) -> NDArray:
    return np.asarray(np.exp(X @ w + b))


def test_a_loaded_model_is_trained_by_the_names_of_its_file() -> None:
    got = model().tensors({"x": (5, 4)}, trainable="fc.*")
    assert list(got.inputs) == ["x"] and sorted(got.params) == ["fc.bias", "fc.weight"]
    loss = vs.reduce_sum(got.outputs["y"])
    grads = vs.grad(loss, got.params)
    with vs.Scheduler(["cpu"]) as sched:
        outputs = {"loss": loss, "w": grads["fc.weight"]}
        run = sched.compile(outputs, updates=vs.optim.sgd(got.params, grads, 0.01))
        first = run(x=X)
        y = formula(W, B)
        np.testing.assert_allclose(first["loss"], y.sum(), rtol=1e-5)
        np.testing.assert_allclose(first["w"], X.T @ y, rtol=1e-4)
        np.testing.assert_allclose(
            sched.read(got.params["fc.bias"]), B - 0.01 * y.sum(0), rtol=1e-5
        )
        assert run(x=X)["loss"] < first["loss"]


def test_what_is_not_trainable_stays_a_weight() -> None:
    got = model().tensors({"x": (5, 4)}, trainable=["*.bias"])
    assert list(got.params) == ["fc.bias"]
    graph, _ = vs.build_graph(dict(got.outputs))
    assert [n.name for n in graph.nodes if n.op == "state"] == ["fc.bias"]
    with vs.Scheduler(["cpu"]) as sched:
        np.testing.assert_allclose(sched.compile(got.outputs["y"])(x=X), formula(W, B), rtol=1e-5)


def test_errors_say_what_the_model_has() -> None:
    with pytest.raises(vs.GraphError, match=r"got 'fc.weigth', which none has.*fc.weight"):
        model().tensors({"x": (5, 4)}, trainable="fc.weigth")
    with pytest.raises(vs.GraphError, match=r"shapes of inputs \['x'\], got 'batch'"):
        model().tensors({"batch": 5})
    with pytest.raises(vs.ShapeError, match="a size for each dimension"):
        model().tensors()


def scaled(*more: NodeProto, **weights: NDArray) -> Model:
    """x times w, and what more nodes make of s: y."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["s"]), *more]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    arrays = [numpy_helper.from_array(a, n) for n, a in {"w": W[:1], **weights}.items()]
    graph = helper.make_graph(nodes, "scaled", inputs, outputs, arrays)
    opset = [helper.make_opsetid("", 17)]
    return vs.load(helper.make_model(graph, opset_imports=opset, ir_version=8))


def test_constants_are_trainable_by_their_own_names_alone() -> None:
    two = numpy_helper.from_array(np.asarray(2, np.float32))
    constant = helper.make_node("Constant", [], ["p[0]"], value=two)
    built = scaled(constant, helper.make_node("Pow", ["s", "p[0]"], ["y"]))
    assert sorted(built.tensors(trainable="*").params) == ["w"]
    assert sorted(built.tensors(trainable=["p[0]"]).params) == ["p[0]"]


def test_what_shapes_depend_on_is_not_trainable() -> None:
    scales = np.asarray([1, 2], np.float32)
    built = scaled(helper.make_node("Resize", ["s", "", "scales"], ["y"], name="up"), scales=scales)
    for pattern in ("*", "w", ["*", "w"]):
        got = built.tensors(trainable=pattern)
        assert sorted(got.params) == ["w"] and got.outputs["y"].shape == (1, 6)
    for named in ("scales", ["*", "scales"], ["w", "sc*"]):
        with pytest.raises(vs.GraphError, match="Resize node 'up' needs 'scales' for a shape"):
            built.tensors(trainable=named)
    with pytest.raises(vs.GraphError, match="as trainable, got None"):
        built.tensors(trainable=None)  # type: ignore[arg-type]


def test_what_shapes_are_computed_from_is_not_trainable() -> None:
    built = scaled(
        helper.make_node("Mul", ["scales", "twice"], ["all"]),
        helper.make_node("Resize", ["s", "", "all"], ["r"], name="up"),
        helper.make_node("Resize", ["r", "", "again"], ["u"], name="more"),
        helper.make_node("Mul", ["u", "gain"], ["y"]),
        scales=np.asarray([1, 1], np.float32),
        twice=np.asarray([1, 2], np.float32),
        again=np.asarray([1, 2], np.float32),
        gain=np.asarray(3, np.float32),
    )
    got = built.tensors(trainable="*")
    assert sorted(got.params) == ["gain", "w"] and got.outputs["y"].shape == (1, 12)
    with pytest.raises(vs.GraphError, match="'up' needs 'twice' for a shape"):
        built.tensors(trainable=["gain", "twice"])


def test_a_model_of_stages_is_refused() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Neg", ["at"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])]
    graph = helper.make_graph(nodes, "segments", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(vs.UnsupportedOp, match=r"single graph|one graph"):
        vs.load(model).tensors()
