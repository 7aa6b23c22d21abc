"""What each device did in the time of a run: figures known by hand, on a simulated clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vksched as vs
from vksched.common.errors import PlanError
from vksched.engine.report.run_history import CpuStepTime, GraphRun, WholeRun, run_of
from vksched.engine.report.time_breakdown import (
    HOST,
    TimeBreakdown,
    TimeSpan,
    spans_of,
    time_breakdowns,
)
from vksched.runtime.run_stats import RunStats, SplitStats

A, B = "null:0", "null:1"
SHAPE = (64, 256)
BYTES = 4.0 * SHAPE[0] * SHAPE[1]
"""Of a value; a copy of it takes 1 s on the links here, and an op 1 s on a device."""


def scheduler(a_slower: float = 1.0, b_slower: float = 1.0, policy: str = "auto") -> vs.Scheduler:
    clock = vs.SimulatedClock()
    devices = [
        vs.SimulatedDevice(
            vs.DeviceSpec(name, "null", bytes_per_s=2 * BYTES, submit_s=0.0),
            clock,
            vs.Link(BYTES),
            slowdown,
        )
        for name, slowdown in ((A, a_slower), (B, b_slower))
    ]
    return vs.Scheduler(devices, trace=vs.Trace(clock), timeout_s=1e3, copies=1, policy=policy)


def parts(run: vs.CompiledGraph) -> dict[str, tuple[float, ...]]:
    """Return busy, copying, waiting and idle seconds by device, of one run."""
    x = {node.name: np.ones(SHAPE, np.float32) for node in run.plan.graph.inputs}
    run(**x)
    report = run.report()
    assert run.stats is not None
    for share in report.times:
        total = share.busy_s + share.copying_s + share.waiting_s + share.idle_s
        assert total == pytest.approx(run.stats.seconds) == pytest.approx(share.wall_s)
    return {
        share.device: (share.busy_s, share.copying_s, share.waiting_s, share.idle_s)
        for share in report.times
    }


def seconds(*values: float) -> object:
    return pytest.approx(values, abs=1e-9)


# -- figures by hand -------------------------------------------------------------------------------


def test_one_device_after_the_other() -> None:
    """in A | A | out A | in B | B, 2 s | out B: 7 s."""
    with scheduler(b_slower=2.0) as sched:
        x = vs.input("x", SHAPE)
        end = vs.exp(vs.exp(x, name="first"), name="second")
        found = parts(sched.compile(end, {"first": A, "second": B}))
    assert found == {
        A: seconds(1, 2, 0, 4),  # idle once its result is out
        B: seconds(2, 2, 3, 0),  # its operand is not there for 3 s
        "cpu": seconds(0, 0, 0, 7),
        HOST: seconds(0, 4, 3, 0),
    }


def test_devices_side_by_side() -> None:
    """in A | in B | B ends at 4 s | out A | out B: 6 s."""
    with scheduler(b_slower=2.0) as sched:
        x = vs.input("x", SHAPE)
        ends = [vs.exp(x, name="first"), vs.relu(x, name="second")]
        found = parts(sched.compile(ends, {"first": A, "second": B}))
    assert found == {
        A: seconds(1, 2, 2, 1),  # done at 2 s; the host comes for the result at 4 s
        B: seconds(2, 2, 2, 0),
        "cpu": seconds(0, 0, 0, 6),
        HOST: seconds(0, 4, 2, 0),
    }


def test_a_copy_next_to_work_is_no_copying() -> None:
    """in B | in A | out B at 3 s and in A at 4 s, while A works until 12 s | A | out A, twice."""
    with scheduler(a_slower=10.0) as sched:
        x = vs.input("x", SHAPE)
        long, other = vs.exp(x, name="long"), vs.relu(x, name="other")
        ends = [long, vs.exp(other, name="last")]
        run = sched.compile(ends, {"long": A, "other": B, "last": A})
        found = parts(run)
        spans = run.report().timeline
    assert [len(split.nodes) for split in run.plan.splits] == [1, 1, 1]
    assert found[A] == seconds(20, 3, 1, 0)  # the copy from 3 s to 4 s counts as work
    assert found[B] == seconds(1, 2, 0, 21)
    written = [s for s in spans if s.kind == "copy" and s.device == A]
    assert len(written) == 4 and sum(s.end_s - s.start_s for s in written) == pytest.approx(4)


@pytest.mark.parametrize("policy", ["earliest-finish", "work-stealing"])
def test_runs_that_decide_where_pieces_go_have_reports_too(policy: str) -> None:
    with scheduler(b_slower=2.0, policy=policy) as sched:
        x = vs.input("x", SHAPE)
        run = sched.compile([vs.exp(vs.softmax(x + float(i))) for i in range(4)])
        found = parts(run)  # later runs may find one device alone to be faster
        report = run.report()
    assert report.runs == 1  # each run has a plan of its own
    assert set(run.stats.device_seconds) == {A, B}  # type: ignore[union-attr]
    for device in (A, B):
        busy_s = run.stats.device_seconds[device]  # type: ignore[union-attr]
        copied = [s for s in report.timeline if s.kind == "copy" and s.device == device]
        assert found[device][0] == pytest.approx(busy_s)
        assert found[device][1] > 0 and all(s.end_s - s.start_s == 1.0 for s in copied)
    written = sum(len(split.uploads) for split in run.plan.splits)
    read = len(run.plan.transfers) + len(run.plan.graph.outputs)
    assert found[HOST][1] == pytest.approx(written + read)  # 1 s each
    assert found[HOST][2] > 0


def test_a_device_without_work_is_idle_and_the_cpu_can_be_busy() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.exp(vs.input("x", SHAPE)))
        found = parts(run)
        assert found["cpu"][0] > 0
        assert found.keys() == {"cpu", HOST}


# -- the rule, and what is wrong -------------------------------------------------------------------

stretch = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)
drawn = st.tuples(st.sampled_from(["busy", "copy", "wait"]), st.sampled_from([A, B]), stretch)


@given(st.lists(drawn, max_size=12))
def test_each_second_counts_once_as_the_first_that_holds(
    spans: list[tuple[str, str, list[int]]],
) -> None:
    run = WholeRun(0.0, 20.0, ())
    found = [TimeSpan(k, d, float(a), float(b), "") for k, d, (a, b) in spans if a < b]
    for share in time_breakdowns(run, found):
        here = [s for s in found if share.device in (s.device, HOST)]
        last = max((s.end_s for s in here), default=0.0)
        counted = {"busy": 0, "copy": 0, "wait": 0, "": 0}
        for second in range(20):
            kinds = {s.kind for s in here if s.start_s <= second < s.end_s}
            if share.device == HOST:
                kind = "copy" if "copy" in kinds else "wait" if "wait" in kinds else "busy"
            else:
                kind = next((k for k in ("busy", "copy") if k in kinds), "")
                kind = kind or ("wait" if second < last else "")
            counted[kind] += 1
        parts_s = share.busy_s, share.copying_s, share.waiting_s, share.idle_s
        assert parts_s == pytest.approx(tuple(counted.values()))


@pytest.mark.parametrize("wrong", [(1, 1, 1, 2), (-1, 2, 2, 1), (0, 0, 0, float("nan"))])
def test_shares_that_do_not_add_up_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(PlanError, match=r"\[report\] expected times of null:0 that add up to 4 s"):
        TimeBreakdown(A, 4.0, *wrong)


def test_a_clock_that_says_more_than_the_run_took_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scheduler() as sched:
        run = sched.compile(vs.exp(vs.input("x", SHAPE), name="first"), {"first": A})
        parts(run)
        assert run.report().notes == ()
        monkeypatch.setattr(
            "vksched.runtime.simulated.simulated_device.SimulatedPreparedPlan.times_s",
            lambda *_: (50.0, 50.0),
        )
        found = parts(run)
        reported = run.report(runs=1)
    assert found[A] == seconds(1, 2, 0, 0)  # no more than there was time for
    assert reported.devices[0].measured_s == 50.0
    assert reported.notes == (
        "null:0 says that it worked for 50 s of a run of 3 s: its clock is wrong, or its splits "
        "overlap",
    )


def test_what_lies_outside_of_a_run_is_cut_off() -> None:
    with scheduler() as sched:
        plan = sched.compile(vs.exp(vs.input("x", SHAPE), name="first"), {"first": A}).plan
    wild = SplitStats(0, A, 1, 9.0, None, begin_s=8.0, end_s=17.0)
    spans = (("copy", 0, 5.0, 11.0), ("wait", 0, 30.0, 31.0))
    stats = RunStats(0, 4.0, 0, 0, 0, 0, 0, (wild,), 10.0, spans)
    assert spans_of(run_of(GraphRun(plan, stats))) == (
        TimeSpan("copy", A, 0.0, 1.0, "split 0"),
        TimeSpan("busy", A, 0.0, 4.0, "split 0: exp"),
    )


def test_a_step_of_the_host_is_work_of_the_cpu() -> None:
    run = WholeRun(1.0, 5.0, (), (CpuStepTime("onnx.Unique", 2.0, 3.0),))
    cpu, host = time_breakdowns(run, spans_of(run))
    assert (cpu.device, cpu.busy_s, cpu.waiting_s, cpu.idle_s) == ("cpu", 1.0, 1.0, 2.0)
    assert (host.device, host.busy_s) == (HOST, 4.0) and cpu.busy == 0.25
