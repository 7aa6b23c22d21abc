"""The report of a model of several stages: all graphs of a run, and the host's steps between."""

from __future__ import annotations

import numpy as np
import pytest
from test_program import parse

import vksched as vs
from vksched.common.errors import PlanError

A = "null:0"
CUT = """g (int64[n] x) => (int64[?] y) {
  a = Neg(x)
  u = Unique(a)
  y = Abs(u) }"""
LOOP = """g (float[64] x, int64 n) => (float[64] s) {
  s = Loop(n, , x) <body = b (int64 i, bool c, float[64] v) => (bool c2, float[64] w) {
    c2 = Identity(c)
    w = Exp(v) }>
}"""
quiet = pytest.mark.filterwarnings("ignore:.fallback. the host runs Unique")
IDS = np.array([3, 1, 3], np.int64)


class TickingClock(vs.SimulatedClock):
    """Whoever asks for the time takes one unit of it, the host too."""

    def now(self) -> float:
        self.advance_to(super().now() + 1.0)
        return super().now()


def null_scheduler(clock: vs.SimulatedClock) -> vs.Scheduler:
    device = vs.SimulatedDevice(vs.DeviceSpec(A, "null"), clock)
    return vs.Scheduler([device], trace=vs.Trace(clock), timeout_s=1e6)


def test_a_report_needs_a_run() -> None:
    with null_scheduler(vs.SimulatedClock()) as sched:
        run = sched.compile(vs.load(parse(CUT)))
        with pytest.raises(PlanError, match=r"\[report\] expected a run that has finished"):
            run.report()


@quiet
def test_the_stages_of_a_run_and_the_steps_between_them() -> None:
    with null_scheduler(TickingClock()) as sched:
        run = sched.compile(vs.load(parse(CUT)))
        run(x=IDS)
        planned = run.report()
        for _ in range(2):
            run(x=IDS)
        report = run.report()
    assert (planned.runs, planned.graphs) == (1, 2)
    assert (report.runs, report.graphs) == (2, 2)  # the first one compiled
    assert "each run is 2 graphs, one after the other" in str(report)
    ops = {(device, line.what): line for device, line in report.ops}
    step = ops["cpu", "onnx.Unique"]
    assert (step.predicted_s, step.measured_s) == (0.0, 1.0)  # one look at the clock
    assert {what for _, what in ops} == {"neg", "onnx.Unique", "abs"}
    for share in report.times:
        parts = share.busy_s, share.copying_s, share.waiting_s, share.idle_s
        assert sum(parts) == pytest.approx(report.run.measured_s)
    kinds = [(span.kind, span.what) for span in report.timeline if span.kind in ("busy", "host_op")]
    assert kinds == [
        ("busy", "graph 1, split 0: neg"),
        ("host_op", "onnx.Unique"),
        ("busy", "graph 2, split 0: abs"),
    ]


def test_bodies_of_loops_belong_to_the_run() -> None:
    with null_scheduler(vs.SimulatedClock()) as sched:
        run = sched.compile(vs.load(parse(LOOP)))
        x = np.ones(64, np.float32)
        for _ in range(2):
            run(x=x, n=np.array(5))
        assert (run.report().graphs, run.report().runs) == (5, 1)
        run_of_five = run.report()
        five = run_of_five.run
        for _ in range(2):
            run(x=x, n=np.array(3))  # other plans: the runs before cannot be compared
        three = run.report()
        assert (three.graphs, three.runs) == (3, 2)
        assert three.run.measured_s == pytest.approx(0.6 * five.measured_s)
        assert three.run.predicted_s == pytest.approx(0.6 * five.predicted_s)
        assert 0 < three.bound_s <= three.run.predicted_s  # of each turn of the loop
        assert three.bound_s == pytest.approx(0.6 * run_of_five.bound_s)


@quiet
def test_a_run_that_fails_is_not_reported() -> None:
    with null_scheduler(vs.SimulatedClock()) as sched:
        run = sched.compile(vs.load(parse(CUT)))
        with pytest.raises(vs.VkschedError):
            run(x=IDS.astype(np.float32))
        with pytest.raises(PlanError, match="got none"):
            run.report()
        run(x=IDS)
        assert run.report().runs == 1


def test_a_session_has_the_report_of_its_model() -> None:
    session = vs.InferenceSession(
        parse(CUT).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    session.run(None, {"x": IDS})
    report = session.model_run.report()
    assert report.graphs == 2 and report.times[-1].device == "host"
    assert report.run.measured_s > sum(line.measured_s for line in report.devices) > 0
