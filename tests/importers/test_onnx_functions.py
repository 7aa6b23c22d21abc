"""Functions of a model and of ONNX itself: spliced in, with their defaults and opsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vksched as vs

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

X = np.array([1, -2, 3], np.float32)
HEAD = '<ir_version: 9, opset_import: ["" : 17, "l" : 1]>\n'


@pytest.fixture(scope="module")
def sched() -> Iterator[vs.Scheduler]:
    with vs.Scheduler(["cpu"]) as sched:
        yield sched


def results(sched: vs.Scheduler, text: str, **feeds: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the results of a model and the ops that ran."""
    run = sched.compile(vs.load(parser.parse_model(text)))
    found = run(**feeds)
    ops = [node.op for plan in run.plans for node in plan.graph.ops]
    ops += [s.lowered.step.node.op_type for s in run.segments if s.lowered.step is not None]
    run.close()
    return found, ops


def test_defaults_of_attributes_reach_nested_calls(sched: vs.Scheduler) -> None:
    text = """g (float[3] x) => (float[3] y, float[3] z, float[3] w) {
        y = l.outer(x)
        z = l.inner<alpha=3.0>(x)
        w = l.both<alpha=5.0>(x) }
      <domain: "l", opset_import: ["" : 17]>
      inner <alpha: float = 2.0> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }
      <domain: "l", opset_import: ["" : 17, "l" : 1]>
      outer (a) => (b) { t = l.inner(a)
                         b = Neg(t) }
      <domain: "l", opset_import: ["" : 17, "l" : 1]>
      both <alpha: float = 9.0> (a) => (b) { b = l.inner<alpha: float = @alpha>(a) }"""
    found, _ = results(sched, HEAD + text, x=X)
    np.testing.assert_allclose(found["y"], [-1, 4, -3])
    np.testing.assert_allclose(found["z"], [1, -6, 3])
    np.testing.assert_allclose(found["w"], [1, -10, 3])


def test_functions_within_subgraphs_and_the_reverse(sched: vs.Scheduler) -> None:
    text = """g (float[3] x, bool c) => (float[3] y) {
        y = If(c) <then_branch = t () => (float[3] u) { u = l.f<alpha=5.0>(x, c) },
                   else_branch = e () => (float[3] u) { u = Neg(x) }> }
      <domain: "l", opset_import: ["" : 17]>
      f <alpha: float> (a, d) => (b) {
        b = If(d) <then_branch = t () => (u) { u = LeakyRelu<alpha: float = @alpha>(a) },
                   else_branch = e () => (u) { u = Abs(a) }> }"""
    found, _ = results(sched, HEAD + text, x=X, c=np.array(True))
    np.testing.assert_allclose(found["y"], [1, -10, 3])


@pytest.mark.parametrize(
    "opset, body",
    [
        (11, "b = Squeeze<axes=[0]>(a)"),  # another form since
        (15, "b = Reshape(a, s)"),  # the same since
        (18, "b = ReduceMean(a, z)"),  # newer than the model
    ],
)
def test_functions_of_other_opsets(sched: vs.Scheduler, opset: int, body: str) -> None:
    text = f"""g (float[1,3] x) => (float[?] y) {{ y = l.f(x) }}
      <domain: "l", opset_import: ["" : {opset}]>
      f (a) => (b) {{ s = Constant<value = int64[1] {{-1}}>()
                     z = Constant<value = int64[1] {{1}}>()
                     {body} }}"""
    found, _ = results(sched, HEAD + text, x=X[None])
    (expected,) = ReferenceEvaluator(parser.parse_model(HEAD + text)).run(None, {"x": X[None]})
    np.testing.assert_allclose(found["y"], expected)


def test_an_op_of_the_same_name_is_meant(sched: vs.Scheduler) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
      g (float[3] x) => (float[3] y) { y = Relu(x) }
      <domain: "", opset_import: ["" : 17]>
      Relu (a) => (b) { b = Neg(a) }"""
    found, _ = results(sched, text, x=X)
    np.testing.assert_array_equal(found["y"], np.maximum(X, 0))


def test_ops_without_a_rule_become_their_function(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vksched.importers.onnx.rules import registry

    monkeypatch.delitem(registry._RULES, ("", "Celu"))
    monkeypatch.delitem(registry._RULES, ("", "GreaterOrEqual"))
    text = """<ir_version: 9, opset_import: ["" : 17]>
      g (float[3] x) => (float[3] y, bool[3] z) { y = Celu<alpha=2.0>(x)
                                                  z = GreaterOrEqual(x, y) }"""
    found, ops = results(sched, text, x=X)
    expected = np.where(X > 0, X, 2 * np.expm1(X / 2))
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5)
    np.testing.assert_array_equal(found["z"], expected <= X)
    assert not [op for op in ops if op.startswith("onnx.")]


def test_functions_of_onnx_are_those_of_the_opset(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ReduceMean in the body of MeanVarianceNormalization has its axes as an attribute up to 17."""
    from vksched.importers.onnx.rules import registry

    monkeypatch.delitem(registry._RULES, ("", "MeanVarianceNormalization"), raising=False)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    expected = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    for opset in (10, 13, 17, 18):
        text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
          g (float[2,3,2,2] x) => (float[2,3,2,2] y) {{ y = MeanVarianceNormalization(x) }}"""
        found, ops = results(sched, text, x=x)
        assert not [op for op in ops if op.startswith("onnx.")]
        np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)
