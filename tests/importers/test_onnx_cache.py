"""ONNX Attention over a cache that is kept outside, of which only the first keys count."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from conftest import Scheds
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import vksched as vs

pytestmark = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 25, reason="windows came with opset 25"
)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("left", [-1, 2])
def test_only_the_first_keys_count(causal: int, left: int, scheds: Scheds) -> None:
    rng = np.random.default_rng(causal)
    feeds = {"q": rng.standard_normal((2, 4, 3, 8)).astype(np.float32)}
    feeds |= {name: rng.standard_normal((2, 2, 9, 8)).astype(np.float32) for name in "kv"}
    node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "count"], ["y"])
    node.attribute.append(helper.make_attribute("is_causal", causal))
    node.attribute.append(helper.make_attribute("left_window_size", left))
    inputs = [
        *(helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in feeds.items()),
        helper.make_tensor_value_info("count", TensorProto.INT64, (2,)),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, [output]),
        opset_imports=[helper.make_opsetid("", 25)],
        ir_version=10,
    )
    run = scheds[0].compile(vs.load(model.SerializeToString()))
    assert any(node.op == "attention_with_kvcache" for node in run.plan.graph.ops)
    for counts in ([5, 9], [3, 4]):
        feed = {**feeds, "count": np.array(counts, np.int64)}
        (wanted,) = ReferenceEvaluator(model).run(None, feed)
        np.testing.assert_allclose(run(**feed)["y"], wanted, rtol=1e-5, atol=1e-5)
