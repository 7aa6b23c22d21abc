"""The mended evaluator: where onnx's own is wrong it gives what onnxruntime gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from vksched.importers.onnx.nodes.reference_evaluator import make_evaluator

pytest.importorskip("onnxruntime")
from onnx_calls import Call, expected
from test_onnx_calls import difference

RNG = np.random.default_rng(5)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def statistics(count: int) -> list[Any]:
    return [floats(count), floats(count), floats(count), np.abs(floats(count)) + 0.1]


STEPS = RNG.integers(0, 255, (2, 3, 4)).astype(np.uint8)
CALLS = [
    Call("BatchNormalization", 7, [floats(2, 3, 4), *statistics(3)], {"epsilon": 0.01}),
    Call("BatchNormalization", 9, [floats(2, 3, 4, 5), *statistics(3)], {"momentum": 0.8}),
    Call("BatchNormalization", 13, [floats(2, 3), *statistics(3)], {}),
    Call("Softmax", 11, [floats(2, 3, 4)], {}),
    Call("Softmax", 12, [floats(2, 3, 4)], {"axis": -2}),
    Call("LogSoftmax", 9, [floats(2, 3, 4)], {"axis": 1}),
    Call("Hardmax", 12, [floats(2, 3, 4)], {"axis": 1}),
    Call("GlobalMaxPool", 9, [floats(2, 3, 4)], {}),
    Call("GlobalMaxPool", 22, [floats(2, 3, 4, 2, 3)], {}),
    Call("LRN", 7, [floats(2, 5, 3, 2)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 0.9}),
    Call("LRN", 13, [floats(3, 2, 3, 4)], {"size": 5}),
    Call("DequantizeLinear", 10, [STEPS, np.float32(0.1), np.uint8(9)], {}),
    Call("DequantizeLinear", 13, [STEPS, floats(3), np.array([1, 2, 3], np.uint8)], {"axis": -2}),
    Call("DequantizeLinear", 13, [STEPS, np.float32(0.1)], {}),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.op}-{c.opset}-{c.inputs[0].ndim}")
def test_mended_ops_give_what_onnxruntime_gives(call: Call) -> None:
    known = expected(replace(call, inputs=[np.asarray(a) for a in call.inputs]))
    assert known is not None and known[0] == "onnxruntime"
    feeds = {name: np.asarray(a) for name, a in call.feeds.items()}
    (found,) = make_evaluator(call.model()).run(None, feeds)
    assert not difference(call, np.asarray(found), known[1][0])
    try:
        (plain,) = ReferenceEvaluator(call.model()).run(None, feeds)
    except Exception:
        return  # it has none
    assert difference(call, np.asarray(plain), known[1][0]), "right by now: it need not be mended"


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_newer_versions_are_onnx_s_own(op: str) -> None:
    call = Call(op, 13, [floats(2, 3, 4)], {})
    known = expected(call)
    assert known is not None
    (found,) = make_evaluator(call.model()).run(None, call.feeds)
    assert not difference(call, np.asarray(found), known[1][0])


def test_graphs_inside_nodes_are_mended_too() -> None:
    from onnx import parser

    text = """g (bool c, float[2,3,4] x) => (float[2,3,4] y) {
      y = If (c) <then_branch = a () => (float[2,3,4] p) { p = Softmax(x) },
                  else_branch = b () => (float[2,3,4] q) { q = Neg(x) }> }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 11]>\n{text}')
    x = floats(2, 3, 4)
    (found,) = make_evaluator(model).run(None, {"c": np.array(True), "x": x})
    np.testing.assert_allclose(found.sum((1, 2)), [1, 1], rtol=1e-5)
