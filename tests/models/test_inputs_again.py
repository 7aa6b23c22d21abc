"""Inputs of a model that are like the last ones are not looked at again; others are."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.importers.onnx.model import Model

onnx = pytest.importorskip("onnx")
X = np.ones((2, 3), np.float32)


@pytest.fixture
def model() -> Model:
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("y", types.FLOAT, ["rows", 3])],
    )
    opsets = [helper.make_opsetid("", 17)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    found = vs.load(data)
    assert isinstance(found, Model)
    return found


def test_inputs_that_differ_from_the_last_ones_are_checked(model: Model) -> None:
    for _ in range(2):
        assert model.check_inputs({"x": X})["x"] is X
        with pytest.raises(vs.DTypeError):
            model.check_inputs({"x": X.astype(np.float64)})
        with pytest.raises(vs.ShapeError):
            model.check_inputs({"x": X.T})
        with pytest.raises(vs.GraphError):
            model.check_inputs({"z": X})
        taller = np.ones((5, 3), np.float32)
        assert model.check_inputs({"x": taller})["x"] is taller
        as_list = model.check_inputs({"x": [[1, 2, 3]]})["x"]
        assert isinstance(as_list, np.ndarray) and as_list.dtype == np.float32


def test_a_model_with_sizes_checks_by_these(model: Model) -> None:
    model.check_inputs({"x": X})
    sized = model.with_sizes({"rows": 5})
    with pytest.raises(vs.ShapeError):
        sized.check_inputs({"x": X})
    model.check_inputs({"x": X})
