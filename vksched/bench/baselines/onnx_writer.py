"""The networks as ONNX files, for runtimes that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .networks import build
from .numpy_functions import EPSILON, Array, later_of

OPSET = 17
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}


class OnnxFile:
    """Builder of an ONNX graph; values are names. state_inputs: inputs that persist between
    runs.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.width, self._tokens = params.get("width", 384), params.get("tokens", 512)
        self.feeds: dict[str, Array] = {}
        self.state_inputs: dict[str, Array] = {}
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._names: dict[int, str] = {}
        self._held: list[Array] = []

    def _const(self, array: Array) -> str:
        if id(array) not in self._names:
            self._names[id(array)] = f"w{len(self._held)}"
            self._held.append(array)  # so that no other array gets its id
            self._constants.append(numpy_helper.from_array(array, self._names[id(array)]))
        return self._names[id(array)]

    def _ints(self, *values: int) -> str:
        return self._const(np.array(values, np.int64))

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def _scalar(self, value: float) -> str:
        return self._const(np.array(value, np.float32))

    def input(self, name: str, value: Array) -> str:
        self.feeds[name] = value
        return name

    def embed(self, ids: str, table: Array) -> str:
        return self._node("Gather", self._const(table), ids, axis=0)

    def linear(self, x: str, w: Array, bias: Array | None) -> str:
        if bias is None:
            return self._node("Gemm", x, self._const(w), transB=1)
        return self._node("Gemm", x, self._const(w), self._const(bias))

    def layer_norm(self, x: str, scale: Array, shift: Array) -> str:
        parts = self._const(scale), self._const(shift)
        return self._node("LayerNormalization", x, *parts, axis=-1, epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        erf = self._node("Erf", self._node("Div", x, self._scalar(2**0.5)))
        scaled = self._node("Mul", x, self._node("Add", erf, self._scalar(1.0)))
        return self._node("Mul", scaled, self._scalar(0.5))

    def relu(self, x: str) -> str:
        return self._node("Relu", x)

    def relu6(self, x: str) -> str:
        return self._node("Clip", x, self._scalar(0.0), self._scalar(6.0))

    def add(self, a: str, b: str) -> str:
        return self._node("Add", a, b)

    def attention(
        self, q: str, k: str, v: str, batch: int, heads: int, causal: bool = False
    ) -> str:
        def split(x: str, *axes: int) -> str:
            shaped = self._node("Reshape", x, self._ints(batch, -1, heads, self.width // heads))
            return self._node("Transpose", shaped, perm=axes)

        scores = self._node("MatMul", split(q, 0, 2, 1, 3), split(k, 0, 2, 3, 1))
        scaled = self._node("Mul", scores, self._scalar((self.width // heads) ** -0.5))
        if causal:
            scaled = self._node("Add", scaled, self._const(later_of(self._tokens)))
        seen = self._node("MatMul", self._node("Softmax", scaled, axis=-1), split(v, 0, 2, 1, 3))
        transposed = self._node("Transpose", seen, perm=(0, 2, 1, 3))
        return self._node("Reshape", transposed, self._ints(-1, self.width))

    def causal_attention(self, q: str, k: str, v: str, batch: int, heads: int) -> str:
        return self.attention(q, k, v, batch, heads, causal=True)

    def last(self, x: str) -> str:
        return self._node("Gather", x, self._ints(self._tokens - 1), axis=0)

    def mean(self, x: str, batch: int) -> str:
        shaped = self._node("Reshape", x, self._ints(batch, -1, self.width))
        return self._node("ReduceMean", shaped, axes=[1], keepdims=0)

    def grow(self, cache: Array, new: str) -> str:
        name = f"kept{len(self.state_inputs)}"
        self.state_inputs[name] = cache
        return self._node("Concat", name, new, axis=0)

    def conv(self, x: str, w: Array, bias: Array, stride: int, pad: int, groups: int = 1) -> str:
        sizes = {"strides": [stride] * 2, "pads": [pad] * 4, "kernel_shape": list(w.shape[2:])}
        return self._node("Conv", x, self._const(w), self._const(bias), group=groups, **sizes)

    def max_pool(self, x: str, kernel: int, stride: int, pad: int) -> str:
        sizes = {"strides": [stride] * 2, "pads": [pad] * 4, "kernel_shape": [kernel] * 2}
        return self._node("MaxPool", x, **sizes)

    def pool(self, x: str) -> str:
        return self._node("Flatten", self._node("GlobalAveragePool", x))

    def finish(self, result: str, shape: tuple[int, ...]) -> bytes:
        """Return the file."""
        inputs = [
            helper.make_tensor_value_info(name, TYPES[array.dtype.name], array.shape)
            for name, array in {**self.feeds, **self.state_inputs}.items()
        ]
        self._nodes.append(helper.make_node("Identity", [result], ["y"]))
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, "network", inputs, [output], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8
        return bytes(model.SerializeToString())


def network_file(params: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[bytes, OnnxFile]:
    """Return a network's file and its feeds; shape: shape of the result."""
    file = OnnxFile(params)
    return file.finish(build(params, file), shape), file
