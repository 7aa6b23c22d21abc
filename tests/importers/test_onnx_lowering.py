"""Lowering: segments, slots, guards and host nodes, on models written as text."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def test_a_shape_that_depends_on_data_cuts_the_model() -> None:
    model = vs.load(
        parse("g (int64[n] x) => (int64[?] z, int64[?] y) { y = Unique(x)\n z = Identity(y) }")
    )
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(model)
        for values in ([3, 1, 3], [4, 4, 4], [5, 5, 5]):
            found = run(x=np.array(values))
            np.testing.assert_array_equal(found["y"], np.unique(values))
            np.testing.assert_array_equal(found["z"], np.unique(values))
        assert len(run.segments) == 3  # one before, one for each number of results


def test_elements_that_make_a_shape_are_guards() -> None:
    model = vs.load(parse("g (float[n] x, int64[2] s) => (float[?,?] y) { y = Reshape(x, s) }"))
    x = np.arange(6, dtype=np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(model)
        for shape in ((2, 3), (3, 2), (2, 3)):
            np.testing.assert_array_equal(run(x=x, s=np.array(shape))["y"], x.reshape(shape))
        assert len(run.segments) == 2


def test_a_node_without_a_rule_is_one_node_of_the_plan() -> None:
    text = "g (float[4] x, float[2,2] q) => (float[4] m, float e) { e = Det(q)\n m = Identity(x) }"
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(text)))
        q = np.array([[1, 2], [3, 4]], np.float32)
        x = np.ones(4, np.float32)
        found = run(x=x, q=q)
        np.testing.assert_allclose(found["e"], np.linalg.det(q), rtol=1e-6)
        np.testing.assert_array_equal(found["m"], x)
        assert [node.op for node in run.plan.graph.ops] == ["onnx.Det"]


def test_ranks_that_tensors_do_not_have_stay_on_the_host() -> None:
    model = parse(
        "g (float[2,1,1,1,1,1,1,1,3] x) => (float[?,?] y) {"
        " k = Constant <value = float[1,1,1,1,1,1,1,1,1,1] {2}> ()\n a = Add(x, k)\n"
        " s = Constant <value = int64[2] {2, 3}> ()\n"
        " b = Reshape(a, s)\n y = Relu(b) }"
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 1, 1, 1, 1, 1, 1, 1, 3)
    with vs.Scheduler(["cpu"]) as sched:
        np.testing.assert_array_equal(sched.compile(vs.load(model))(x=x)["y"], x.reshape(2, 3) + 2)


def test_optional_inputs_that_the_evaluator_asks_for_have_their_defaults() -> None:
    model = parse(
        "g (float[1,2,4] b, float[1,1,2] s, int64[1] m) => (int64[?,3] y)"
        " { y = NonMaxSuppression(b, s, m) }"
    )
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(model))
        found = run(b=boxes, s=np.array([[[0.5, 0.75]]], np.float32), m=np.array([2]))
        np.testing.assert_array_equal(found["y"], [[0, 0, 1], [0, 0, 0]])


def test_a_position_that_runs_differ_in_is_no_guard() -> None:
    text = """g (seq(float[3]) s, int64 p, float[3] x) => (float[3] y, seq(float[3]) t) {
      n = Neg(x)
      t = SequenceInsert(s, n)
      a = SequenceAt(t, p)
      y = Abs(a) }"""
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(text)))
        x = np.array([1, -2, 3], np.float32)
        for position, expected in ((0, 5 * x), (1, -x), (-1, -x)):
            found = run(s=[5 * x], p=np.array(position), x=x)
            np.testing.assert_array_equal(found["y"], np.abs(expected))
            np.testing.assert_array_equal(found["t"], [5 * x, -x])
        assert len(run.segments) == 2


def test_a_condition_of_elements_is_no_guard() -> None:
    text = "g (float[4] x, bool[4] c) => (float[?] y) { y = Compress<axis=0>(x, c) }"
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(text)))
        x = np.arange(4, dtype=np.float32)
        for bits in ((1, 0, 1, 0), (0, 1, 0, 1), (1, 1, 0, 0)):
            c = np.array(bits, bool)
            np.testing.assert_array_equal(run(x=x, c=c)["y"], x[c])
        assert len(run.segments) == 2  # before, and one for two elements
        assert run(x=x, c=np.zeros(4, bool))["y"].shape == (0,)


def test_operands_of_another_rank_are_refused_where_onnx_has_no_schema() -> None:
    model = parse(
        "g (float[4] x) => (float[4] y) { y = com.microsoft.MultiHeadAttention <num_heads = 2>"
        " (x, x, x) }"
    )
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.ModelFormatError, match="'y'"):
        sched.compile(vs.load(model))


def test_what_the_evaluator_refuses_is_folded_by_its_rule() -> None:
    """onnx's evaluator takes Unsqueeze of opset 10 for that of opset 13."""
    text = """g (float[n,m] x) => (float[?] y, float[n,m] z) {
      s = Shape(x)
      k = Constant <value = int64 {1}> ()
      m = Gather(s, k)
      a = Unsqueeze <axes = [0]> (m)
      y = ConstantOfShape(a)
      z = Relu(x)
    }"""
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(text, 10)))
        found = run(x=np.ones((2, 3), np.float32))
        assert found["y"].shape == (3,) and len(run.segments) == 1
