"""Writes the sentence encoder of the demo as an ONNX file, for `vksched run` or any other runtime.

    python examples/export_minilm.py minilm.onnx
    vksched info minilm.onnx
    vksched run minilm.onnx --random-inputs --free-dim batch=8 --free-dim sequence=32 --check
    onnxruntime

Inputs: input_ids and attention_mask, int64 (batch, sequence). Output: embedding (batch, hidden).
"""

from __future__ import annotations

import math
import sys

import numpy as np
import onnx
from minilm import MiniLM, load_minilm
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Writer:
    """Nodes and weights of a graph; values are names, and arrays become initializers."""

    def __init__(self, model: MiniLM) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def __call__(self, op: str, *inputs: object, **attributes: object) -> str:
        """Add a node and returns the name of its result."""
        name = f"{op}_{len(self.nodes)}"
        names = [
            i if isinstance(i, str) else self.keep(np.asarray(i), f"{name}.{k}")
            for k, i in enumerate(inputs)
        ]
        self.nodes.append(helper.make_node(op, names, [name], name, **attributes))
        return name

    def keep(self, array: np.ndarray, name: str) -> str:
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name: str, transposed: bool = False) -> str:
        """Return a weight of the model, added at its first use."""
        array = self.model.arrays[name]
        return self.keep(array.T if transposed else array, name)

    def linear(self, x: str, name: str) -> str:
        product = self("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        eps = float(self.model.config["layer_norm_eps"])
        return self("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)


def add_layer(w: Writer, x: str, bias: str, at: str) -> str:
    """Add one layer: attention, then two products with a gelu between them."""
    heads, hidden = (int(w.model.config[k]) for k in ("num_attention_heads", "hidden_size"))

    def split_heads(part: str, order: list[int]) -> str:
        flat = w.linear(x, f"{at}.attention.self.{part}")
        return w("Transpose", w("Reshape", flat, [0, 0, heads, hidden // heads]), perm=order)

    query, value = split_heads("query", [0, 2, 1, 3]), split_heads("value", [0, 2, 1, 3])
    scores = w("MatMul", query, split_heads("key", [0, 2, 3, 1]))
    scores = w("Div", scores, np.float32(math.sqrt(hidden // heads)))
    seen = w("MatMul", w("Softmax", w("Add", scores, bias), axis=-1), value)
    seen = w("Reshape", w("Transpose", seen, perm=[0, 2, 1, 3]), [0, 0, hidden])
    seen = w.linear(seen, f"{at}.attention.output.dense")
    x = w.norm(w("Add", x, seen), f"{at}.attention.output.LayerNorm")
    wide = w.linear(x, f"{at}.intermediate.dense")
    share = w("Add", w("Erf", w("Div", wide, np.float32(math.sqrt(2)))), np.float32(1))
    wide = w("Mul", w("Mul", wide, share), np.float32(0.5))
    return w.norm(w("Add", x, w.linear(wide, f"{at}.output.dense")), f"{at}.output.LayerNorm")


def make_model(model: MiniLM) -> onnx.ModelProto:
    """Return the encoder, with its pooling, as an ONNX model of any batch and length."""
    w = Writer(model)
    words = w("Gather", w.weight("embeddings.word_embeddings.weight"), "input_ids")
    length = w("Slice", w("Shape", "input_ids"), [1], [2])
    places = w("Slice", w.weight("embeddings.position_embeddings.weight"), [0], length, [0])
    kind = w("Gather", w.weight("embeddings.token_type_embeddings.weight"), np.array(0))
    x = w.norm(w("Add", words, w("Add", places, kind)), "embeddings.LayerNorm")
    mask = w("Cast", "attention_mask", to=TensorProto.FLOAT)
    bias = w("Mul", w("Sub", mask, np.float32(1)), np.float32(1e9))
    bias = w("Unsqueeze", bias, [1, 2])
    for i in range(model.layers):
        x = add_layer(w, x, bias, f"encoder.layer.{i}")
    masked = w("Mul", x, w("Unsqueeze", mask, [2]))
    mean = w("Div", w("ReduceSum", masked, [1], keepdims=0), w("ReduceSum", mask, [1], keepdims=1))
    w.nodes.append(helper.make_node("LpNormalization", [mean], ["embedding"], axis=1, p=2))
    free, integer = ["batch", "sequence"], TensorProto.INT64
    inputs = [
        helper.make_tensor_value_info(n, integer, free) for n in ("input_ids", "attention_mask")
    ]
    hidden = int(model.config["hidden_size"])
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", hidden])
    graph = helper.make_graph(w.nodes, "minilm", inputs, [output], list(w.weights.values()))
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="vksched")


def main(path: str = "minilm.onnx") -> None:
    onnx.save(make_model(load_minilm()), path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
