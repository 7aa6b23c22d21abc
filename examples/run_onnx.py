"""Runs an ONNX model on your devices: the file you name, or a small one that is made here.

    python examples/run_onnx.py [model.onnx]

Dimensions without a size are taken as 1, and the inputs are made up.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from onnx.numpy_helper import from_array
from onnx.parser import parse_model
from pick import present_devices

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.onnx.example_inputs import choose_shapes, example_inputs

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
digits (float[batch, 64] pixels) => (float[batch, 10] probabilities, int64[batch] best) {
  hidden = MatMul(pixels, w1)
  active = Relu(hidden)
  scores = MatMul(active, w2)
  probabilities = Softmax(scores)
  best = ArgMax <axis = 1, keepdims = 0> (probabilities)
}"""


def build_model() -> bytes:
    """Return a small network with random weights, as the bytes of a file."""
    model, rng = parse_model(TEXT), np.random.default_rng(0)
    for name, shape in (("w1", (64, 32)), ("w2", (32, 10))):
        array = rng.standard_normal(shape, dtype=np.float32) / 8
        model.graph.initializer.append(from_array(array, name))
    return bytes(model.SerializeToString())


def main(devices: Sequence[str] | None = None, path: str = "") -> Mapping[str, NDArray]:
    """Return the outputs by name."""
    model = vs.load(path or build_model())
    print(model)
    with vs.Scheduler(devices or present_devices()) as sched:
        run = sched.compile(model)
        outputs = run(**example_inputs(model, choose_shapes(model, {}, {}, {}).shapes, seed=0))
        print(run.explain())
    return outputs


if __name__ == "__main__":
    for name, array in main(path="".join(sys.argv[1:2])).items():
        print(name, array.dtype, array.shape)
