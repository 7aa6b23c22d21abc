"""Networks of 8 bits as mobile ones are, against onnxruntime: every op on the device, every code
the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vksched.importers import load_onnx  # noqa: E402

SIDE, IMAGES = 24, 2
LAYERS = ((8, 1, 3, 16), (16, 16, 3, 16), (16, 4, 3, 32), (32, 1, 1, 8))
"""Channels, groups, side of the kernel, channels of the result: whole, depthwise, in groups, of a
place.
"""


class Written:
    """A model as it is written."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.known: list[onnx.TensorProto] = []

    def add(self, op: str, inputs: list[str], outputs: list[str], **attrs: object) -> None:
        self.nodes.append(helper.make_node(op, inputs, outputs, **attrs))

    def put(self, name: str, array: np.ndarray) -> None:
        self.known.append(numpy_helper.from_array(np.asarray(array), name))

    def convolution(self, number: int, x: str) -> str:
        channels, groups, side, results = LAYERS[number]
        shape = results, channels // groups, side, side
        # signed weights have 7 bits: onnxruntime's sums overflow 16 bits on CPUs without VNNI
        low, count = (-63, 127) if number % 2 else (0, 255)
        kind = np.int8 if number % 2 else np.uint8
        names = [f"{part}{number}" for part in ("w", "scales", "zeros", "bias")]
        w, scales, zeros, bias = names
        self.put(w, self.rng.integers(low, low + count, shape).astype(kind))
        self.put(scales, (self.rng.random(results) * 0.01 + 0.001).astype(np.float32))
        zero = np.zeros if number % 2 else lambda n, k: np.full(n, 128, k)
        self.put(zeros, zero(results, kind))
        self.put(bias, self.rng.integers(-999, 999, results).astype(np.int32))
        inputs = [x, "scale", "zero", w, scales, zeros, "scale", "zero", bias]
        self.add("QLinearConv", inputs, [f"y{number}"], group=groups, pads=[side // 2] * 4)
        return f"y{number}"


def network() -> onnx.ModelProto:
    """Codes made of floats as they come, a product, convolutions, codes back to floats."""
    written = Written()
    written.put("scale", np.float32(0.5))
    written.put("zero", np.uint8(100))
    written.put("matrix", written.rng.integers(0, 255, (SIDE, SIDE)).astype(np.uint8))
    written.put("middle", np.uint8(128))
    written.add("DynamicQuantizeLinear", ["x"], ["codes", "of_x", "zero_of_x"])
    written.add("MatMulInteger", ["codes", "matrix", "zero_of_x", "middle"], ["sums"])
    written.add("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT)
    written.add("Mul", ["floats", "of_x"], ["scaled"])
    written.add("QuantizeLinear", ["scaled", "scale", "zero"], ["first"])
    last = "first"
    for number in range(len(LAYERS)):
        last = written.convolution(number, last)
    written.put("wide", written.rng.integers(0, 255, (4, 8, 1, 1)).astype(np.uint8))
    written.add("ConvInteger", [last, "wide", "zero"], ["raw"])
    written.add("DequantizeLinear", [last, "scale", "zero"], ["values"])
    graph_input = helper.make_tensor_value_info("x", TensorProto.FLOAT, (IMAGES, 8, SIDE, SIDE))
    results = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in (("raw", TensorProto.INT32), ("values", TensorProto.FLOAT))
    ]
    graph = helper.make_graph(written.nodes, "quantized", [graph_input], results, written.known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(params=["cpu", *vulkan_names()])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    with vs.Scheduler([request.param], tune=False) as sched:
        yield sched


@pytest.mark.parametrize("word", ["float32", "float16", "bfloat16"])
def test_codes_are_those_of_onnxruntime(word: str, sched: vs.Scheduler) -> None:
    """Whatever the precision, as sums of codes are exact."""
    model = network()
    x = np.random.default_rng(5).standard_normal((IMAGES, 8, SIDE, SIDE)).astype(np.float32)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    run = sched.compile(load_onnx(model), precision=word)
    for name, wanted in zip(("raw", "values"), expected, strict=True):
        np.testing.assert_array_equal(run(x=x)[name], wanted)
    plan = run.plan
    assert {plan.topology.devices[split.device].name for split in plan.splits} == {
        plan.topology.devices[0].name
    }
    ops = {node.op for node in plan.graph.ops}
    assert {"matmul_integer", "conv_integer", "conv", "quantize_linear", "requantize"} <= ops
