"""Control flow: what becomes part of the graph, what is run turn by turn, and both as onnxruntime.

A loop is a text whose turns are fixed by a constant (then they are copied), or by an input (then
its body is a program).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import DEVICE_SETS

import vksched as vs

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import parser  # noqa: E402

X = np.array([1, -2, 3], np.float32)
ROWS = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
DEVICES = [list(DEVICE_SETS)[0], *list(DEVICE_SETS)[1:2]]


@pytest.fixture(scope="module", params=DEVICES)
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    with vs.Scheduler(DEVICE_SETS[request.param]) as sched:
        yield sched


def check(sched: vs.Scheduler, text: str, opset: int = 17, **feeds: Any) -> list[str]:
    """Run a model twice, as onnxruntime; returns the ops that the host took as steps."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    run = sched.compile(vs.load(model))
    for found in (run(**feeds), run(**feeds)):
        for output, expected in zip(model.graph.output, wanted, strict=True):
            compare(found[output.name], expected)
    steps = [s.lowered.step.node.op_type for s in run.segments if s.lowered.step is not None]
    run.close()
    return steps


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
        return
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# -- if ------------------------------------------------------------------------------------------

NESTED_IF = """g (float[3] x, bool c) => (float[3] y) { t = Neg(x)
  y = If(c) <then_branch = a () => (float[3] u) { u = Abs(t) },
             else_branch = b () => (float[3] u) { s = Abs(x)
    u = If(c) <then_branch = aa () => (float[3] v) { v = Neg(s) },
               else_branch = bb () => (float[3] v) { w = Add(s, t)
                                                     v = Add(w, s) }> }> }"""


@pytest.mark.parametrize("condition", [True, False])
def test_only_the_branch_that_is_taken_is_lowered(sched: vs.Scheduler, condition: bool) -> None:
    assert check(sched, NESTED_IF, x=X, c=np.array(condition)) == []


def test_a_condition_that_is_computed_cuts_the_model(sched: vs.Scheduler) -> None:
    text = """g (float[3] x) => (float[3] y, float[3] z) { s = ReduceSum<keepdims=0>(x)
      one = Constant<value_float=1.0>()
      c = Greater(s, one)
      y = If(c) <then_branch = t () => (float[3] q) { q = Neg(x) },
                 else_branch = e () => (float[3] q) { q = Add(x, x) }>
      z = Abs(y) }"""
    assert check(sched, text, x=X) == []
    assert check(sched, text, x=-X) == []


def test_names_of_a_branch_may_hide_those_around_it(sched: vs.Scheduler) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x, bool c) => (float[3] y) { t = Neg(x)
          u = If(c) <then_branch = a () => (float[3] v) { t = Add(x, x)
                                                          v = Abs(t) },
                     else_branch = b () => (float[3] v) { v = Identity(t) }>
          y = Add(t, u) }"""
    )
    run = sched.compile(vs.load(model))
    np.testing.assert_array_equal(run(x=X, c=np.array(True))["y"], -X + np.abs(2 * X))
    np.testing.assert_array_equal(run(x=X, c=np.array(False))["y"], -2 * X)
    run.close()


# -- loop ----------------------------------------------------------------------------------------

BODY = """body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2, float[3] made) {
  %s
  s2 = Add(s, k)
  made = Mul(s2, t) }"""
LOOP = "g (float[3] x%s) => (float[3] y, float[p,3] z) { k = Abs(x)\n t = Neg(x)\n %s\n"


@pytest.mark.parametrize("turns", [0, 1, 4])
@pytest.mark.parametrize("known", [True, False])
def test_loops_by_count(sched: vs.Scheduler, turns: int, known: bool) -> None:
    body = BODY % "c2 = Identity(c)"
    declared = "" if known else ", int64 m"
    text = LOOP % (declared, f"m = Constant<value_int={turns}>()" if known else "")
    text += f"y, z = Loop(m, , x) <{body}> }}"
    feeds = {} if known else {"m": np.array(turns)}
    assert check(sched, text, x=X, **feeds) == ([] if known else ["Loop"])


def test_a_condition_that_is_computed_ends_a_loop(sched: vs.Scheduler) -> None:
    ends = """limit = Constant<value_float=20.0>()
      sum = ReduceSum<keepdims=0>(s)
      c2 = Less(sum, limit)"""
    text = LOOP % ("", "m = Constant<value_int=100>()") + f"y, z = Loop(m, , x) <{BODY % ends}> }}"
    assert check(sched, text, x=X) == ["Loop"]


COUNTED = """g (float[3] x) => (float[3] y, float[p,3] z, int64 q) { k = Abs(x)
  yes = Constant<value: tensor = bool {1}>()
  zero = Constant<value_int=0>()
  y, q, z = Loop(, yes, x, zero) <body = b (int64 i, bool c, float[3] s, int64 r)
      => (bool c2, float[3] s2, int64 r2, float[3] made) {
    one = Constant<value_int=1>()
    limit = Constant<value_int=%d>()
    r2 = Add(r, one)
    c2 = Less(r2, limit)
    s2 = Add(s, k)
    made = Neg(s) }> }"""


def test_a_condition_that_follows_from_what_is_known_is_no_work(sched: vs.Scheduler) -> None:
    assert check(sched, COUNTED % 5, x=X) == []


def test_a_loop_that_turns_out_long_goes_on_as_a_program(sched: vs.Scheduler) -> None:
    assert check(sched, COUNTED % 100, x=X) == ["Loop"]


@pytest.mark.parametrize("outer, inner", [("m", "n"), ("n", "m"), ("n", "n"), ("m", "m")])
def test_nested_loops(sched: vs.Scheduler, outer: str, inner: str) -> None:
    """m is known, n is not."""
    text = f"""g (float[3] x, int64 n) => (float[3] y) {{ m = Constant<value_int=2>()
      y = Loop({outer}, , x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {{
        c2 = Identity(c)
        s2 = Loop({inner}, , s) <
            body = bb (int64 j, bool d, float[3] u) => (bool d2, float[3] u2) {{
          d2 = Identity(d)
          f = Cast<to=1>(i)
          v = Add(u, x)
          u2 = Add(v, f) }}> }}> }}"""
    steps = check(sched, text, x=X, n=np.array(3))
    assert set(steps) == ({"Loop"} if "n" in (outer, inner) else set())


def test_what_is_carried_may_grow(sched: vs.Scheduler) -> None:
    text = """g (float[3] x, int64 n) => (float[p] y, seq(float[k]) q) { e = SequenceEmpty()
      y, q = Loop(n, , x, e) <body = b (int64 i, bool c, float[k] s, seq(float[k]) q0)
          => (bool c2, float[k2] s2, seq(float[k]) q1) {
        c2 = Identity(c)
        q1 = SequenceInsert(q0, s)
        s2 = Concat<axis=0>(s, x) }> }"""
    assert "Loop" in check(sched, text, x=X, n=np.array(3))


# -- scan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "axis, backward, out_axis, out_backward",
    [(0, 0, 0, 0), (1, 1, 0, 1), (-1, 0, 1, 0), (1, 0, -1, 1)],
)
@pytest.mark.parametrize("copied", [True, False])
def test_scan(
    sched: vs.Scheduler,
    monkeypatch: pytest.MonkeyPatch,
    axis: int,
    backward: int,
    out_axis: int,
    out_backward: int,
    copied: bool,
) -> None:
    from vksched.importers.onnx.rules.control_flow import if_loop

    if not copied:
        monkeypatch.setattr(if_loop, "MAX_NODES", 1)
    rows, columns = (d for a, d in enumerate(ROWS.shape) if a != axis % 3)
    text = f"""g (float[2,4,3] xs, float[{rows},{columns}] s0) => (float[a,b] y, float[a,b,c] z) {{
      k = Neg(s0)
      y, z = Scan<num_scan_inputs=1, scan_input_axes=[{axis}],
          scan_input_directions=[{backward}], scan_output_axes=[{out_axis}],
          scan_output_directions=[{out_backward}],
          body = b (float[{rows},{columns}] s, float[{rows},{columns}] e)
              => (float[{rows},{columns}] s2, float[{rows},{columns}] o) {{
            s1 = Add(s, e)
            s2 = Add(s1, k)
            o = Mul(s2, s) }}>(s0, xs) }}"""
    start = np.full((rows, columns), 0.5, np.float32)
    assert check(sched, text, xs=ROWS, s0=start) == ([] if copied else ["Scan"])


@pytest.mark.parametrize("lengths", [None, (2, 4)])
@pytest.mark.parametrize("backward", [0, 1])
def test_scan_of_batches(
    sched: vs.Scheduler, lengths: tuple[int, int] | None, backward: int
) -> None:
    text = f"""g ({"" if lengths is None else "int64[2] n,"} float[2,3] s, float[2,4,3] xs)
        => (float[2,3] y, float[2,4,3] z) {{
      y, z = Scan<num_scan_inputs=1, directions=[{backward}],
          body = b (float[3] s, float[3] e) => (float[3] s2, float[3] o) {{ s2 = Add(s, e)
                                                                          o = Mul(s2, s) }}>
        ({"" if lengths is None else "n"}, s, xs) }}"""
    feeds = {} if lengths is None else {"n": np.array(lengths)}
    steps = check(sched, text, 8, s=ROWS[:, 0], xs=ROWS, **feeds)
    assert steps == ([] if lengths is None else ["Scan"])


def test_a_branch_that_is_wrong_is_named(sched: vs.Scheduler) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[3] x, int64 n, float[2] q) => (float[?] y) {
        y = Loop(n, , x) <body = b (int64 i, bool c, float[k] s) => (bool c2, float[k] s2) {
          c2 = Identity(c)
          s2 = Add(s, q) }> }"""
    model = parser.parse_model(text)
    run = sched.compile(vs.load(model))
    with pytest.raises(vs.VkschedError, match="s2"):
        run(x=X, n=np.array(2), q=np.ones(2, np.float32))
    found = run(x=X, n=np.array(0), q=np.ones(2, np.float32))["y"]
    np.testing.assert_array_equal(found, X)
    run.close()
