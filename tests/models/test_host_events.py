"""What is told of the host's work between segments: a warning, an event, a place in explain()."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from test_fallback import null_scheduler
from test_program import parse

import vksched as vs

TEXT = """g (float[n] x) => (float[?] y) {
  n0 = Neg(x)
  u = Unique(n0)
  y = Exp(u) }"""
LOOP = """g (float[3] x, int64 n) => (float[?] z, float[3] s) {
  s, all = Loop(n, , x) <body = b (int64 i, bool c, float[3] v) => (bool c2, float[3] w, int64 k) {
    c2 = Identity(c)
    w = Neg(v)
    k = Identity(i) }>
  z = Cast<to=1>(all) }"""
MANY = np.arange(40, dtype=np.float32) % 20


@pytest.fixture
def gpu() -> Iterator[vs.Scheduler]:
    """A scheduler with a device, so that what the host does is worth a word."""
    with null_scheduler(True) as sched:
        yield sched


def test_a_step_is_warned_of_once_per_kind_at_the_line_that_runs(gpu: vs.Scheduler) -> None:
    run = gpu.compile(vs.load(parse(TEXT)))
    with pytest.warns(vs.VkschedWarning) as caught:
        np.testing.assert_array_equal(run(x=MANY)["y"], np.exp(-MANY[19::-1]))
    assert [str(w.message) for w in caught] == [
        "[fallback] the host runs Unique (node 'u') on the CPU, because no vksched op expresses "
        "Unique; the graph is split there, and the second segment is compiled once its input "
        "shapes are known; try print(run.explain())"
    ]
    assert caught[0].filename == __file__
    run(x=MANY[:30])  # warnings are errors here
    gpu.compile(vs.load(parse(TEXT)))(x=MANY)


def test_control_flow_and_few_numbers_are_not_warned_of(gpu: vs.Scheduler) -> None:
    few = "g (int64[n] x) => (int64[?] u) { u = Unique(x) }"
    run = gpu.compile(vs.load(parse(few)))
    np.testing.assert_array_equal(run(x=np.array([3, 1, 3]))["u"], [1, 3])
    run = gpu.compile(vs.load(parse(LOOP)))
    np.testing.assert_array_equal(run(x=MANY[:3], n=np.array(20))["z"], np.arange(20))


def test_few_numbers_from_a_device_count(gpu: vs.Scheduler) -> None:
    run = gpu.compile(vs.load(parse(TEXT)), {"n0*": "null:0"})
    with pytest.warns(vs.VkschedWarning, match="the host runs Unique"):
        run(x=MANY[:4])


def test_on_numpy_alone_nothing_is_warned_of_and_steps_are_events() -> None:
    recorder = vs.Recorder()
    with vs.Scheduler(["cpu"], trace=vs.Trace(sinks=[recorder])) as sched:
        sched.compile(vs.load(parse(TEXT)))(x=MANY)
        (step,) = recorder.select("host_op", "cpu")
        before, after = recorder.select("run")
        reported = step.fields["op"], step.fields["node"], step.fields["cause"]
        assert reported == ("onnx.Unique", "u", "no vksched op expresses Unique")
        assert before.end_s <= step.start_s <= step.end_s <= after.start_s
        sched.compile(vs.load(parse(LOOP)))(x=MANY[:3], n=np.array(2))
        assert recorder.select("host_op") == [step]


def test_a_model_explains_its_stages_and_what_is_between() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(TEXT)))
        with pytest.raises(vs.PlanError, match=r"none yet; try run\(x=\.\.\.\) or prepare first"):
            run.explain()
        run.prepare(x=(40,))
        assert run.explain().endswith(
            "segment 2: not compiled yet; a run compiles it for its shapes"
        )
        run(x=MANY)
        first, second = (plan.explain() for plan in run.plans)
        assert run.explain() == (
            f"segment 1, for x float[40]:\n{first}\n\n"
            "after segment 1: the host runs Unique node 'u', as no vksched op expresses Unique\n\n"
            f"segment 2, for u float[20]:\n{second}"
        )
        run(x=MANY[:7])
        assert "segment 2, for u float[7]:" in run.explain() and "float[40]" not in run.explain()


def test_guards_and_loops_are_explained() -> None:
    text = "g (float[n] x, int64[2] s) => (float[?,?] y) { y = Reshape(x, s) }"
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(text)))
        run(x=MANY, s=np.array([4, 10]))
        assert run.explain().startswith(
            "segment 1, for x float[40], s int64[2], where s = [4, 10]:"
        )
        run = sched.compile(vs.load(parse(LOOP)))
        run(x=MANY[:3], n=np.array(2))
        text = run.explain()
        assert "the host goes through Loop node 's', as" in text
        assert "s, segment 1, for" in text and "\nsegment 2, for " in text
