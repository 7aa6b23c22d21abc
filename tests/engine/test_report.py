"""run.report(): predicted beside measured, of runs, their devices and their ops."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import vksched as vs
from vksched.common.errors import PlanError
from vksched.common.formatting import format_seconds
from vksched.engine.report.run_history import (
    MAX_SPLITS,
    RUNS,
    GraphHistory,
    GraphRun,
    RunHistory,
    WholeRun,
    run_of,
)
from vksched.runtime.run_stats import RunStats, SplitStats

A, B = "null:0", "null:1"


@pytest.fixture
def run() -> vs.CompiledGraph:
    clock = vs.SimulatedClock()
    specs = [vs.DeviceSpec(name, "null", bytes_per_s=1e8) for name in (A, B)]
    devices = [
        vs.SimulatedDevice(specs[0], clock),
        vs.SimulatedDevice(specs[1], clock, slowdown=2.0),
    ]
    sched = vs.Scheduler(devices, trace=vs.Trace(clock))
    x = vs.input("x", (64, 256))
    end = vs.softmax(vs.exp(x, name="first"), name="second")
    return sched.compile(end, {"first": A, "second": B})


def test_a_report_needs_a_run(run: vs.CompiledGraph) -> None:
    with pytest.raises(PlanError, match=r"\[report\] expected a run that has finished, got none"):
        run.report()


def test_a_report_has_the_run_its_devices_and_its_ops(run: vs.CompiledGraph) -> None:
    run(x=np.ones((64, 256), np.float32))
    report = run.report()
    assert report.run.measured_s == pytest.approx(run.stats.seconds)  # type: ignore[union-attr]
    assert {line.what: line.ratio for line in report.devices} == {
        A: pytest.approx(1.0), B: pytest.approx(2.0)
    }  # fmt: skip
    ops = {(device, line.what): line for device, line in report.ops}
    assert ops.keys() == {(A, "exp"), (B, "softmax")}
    assert ops[A, "exp"].ratio == pytest.approx(1.0)
    assert 2.0 <= ops[B, "softmax"].ratio < 2.3  # what its submission took more counts as its own
    assert report.run.known == 0.0


def test_a_report_is_two_tables_and_plain_data(run: vs.CompiledGraph) -> None:
    run(x=np.ones((64, 256), np.float32))
    report = run.report(advice=False)
    expected, done, reported = (table.splitlines() for table in str(report).split("\n\n"))
    assert expected[0].split() == ["predicted", "measured", "ratio", "known"]
    assert [line.split()[0] for line in expected[1:]] == ["run", A, "exp", B, "softmax"]
    assert expected[2].split()[-3:] == ["1.00", "0", "%"]
    assert done[0].split() == ["busy", "copying", "waiting", "idle"]
    assert [line.split()[0] for line in done[1:]] == [A, B, "cpu", "host"]
    assert done[3].split()[-4:] == ["4.11", "ms", "100", "%"]
    assert reported == [
        "lower bound 2.62 ms: predicted at 1.05 times of it, measured at 1.57",
        f"{A} hands 64.0 KiB on to other devices",
    ]
    data = json.loads(json.dumps(report.as_dict()))
    assert data["run"]["measured_s"] == report.run.measured_s
    assert [line["what"] for line in data["devices"]] == [A, B]
    assert data["ops"][0]["device"] == B
    assert [each["device"] for each in data["times"]] == [A, B, "cpu", "host"]
    assert {each["kind"] for each in data["timeline"]} == {"busy", "copy", "wait"}
    assert (data["runs"], data["graphs"], data["notes"]) == (1, 1, [])


def test_no_run_is_predicted_under_its_bound(run: vs.CompiledGraph) -> None:
    run(x=np.ones((64, 256), np.float32))
    report = run.report(advice=False)
    each_s = 2 * 4 * 64 * 256 / 1e8  # what an op reads and writes
    assert report.bound_s == pytest.approx(2 * each_s)
    assert report.of_bound is not None and 1.0 <= report.of_bound[0] < 1.1
    assert report.of_bound[1] == pytest.approx(report.run.measured_s / report.bound_s)
    data = report.as_dict()
    assert (data["bound_s"], data["of_bound"]) == (report.bound_s, report.of_bound)
    nothing = dataclasses.replace(report, bound_s=0.0)
    assert nothing.of_bound is None and not any("bound" in line for line in nothing.lines())


# -- several runs ----------------------------------------------------------------------------------


def test_several_runs_are_medians(run: vs.CompiledGraph) -> None:
    x = np.ones((64, 256), np.float32)
    taken: list[float] = []
    for slowdown in (2.0, 9.0, 3.0, 1.0):
        devices_of(run)[1].slowdown = slowdown
        run(x=x)
        assert run.stats is not None
        taken.append(run.stats.seconds)
    report = run.report()
    assert report.runs == 4 and "medians of 4 runs" in str(report)
    assert report.run.measured_s == sorted(taken)[1]  # the shorter of the two in the middle
    middle = {share.device: share for share in report.times}
    assert middle[B].wall_s == taken[0]
    assert report.devices[1].ratio == pytest.approx(2.0)
    last = run.report(runs=1)
    assert (last.runs, last.run.measured_s) == (1, taken[3])
    assert run.report(runs=3).run.measured_s == sorted(taken[1:])[1]
    for wrong in (0, -1, 1.5):
        with pytest.raises(PlanError, match=r"\[report\] expected at least one run, got"):
            run.report(runs=wrong)  # type: ignore[arg-type]


def devices_of(run: vs.CompiledGraph) -> list[vs.SimulatedDevice]:
    found = run._compiled._preparing.opened.devices
    return [device for device in found if isinstance(device, vs.SimulatedDevice)]


def stats_of(seconds: float, splits: int = 1) -> RunStats:
    return RunStats(0, seconds, 0, 0, 0, 0, 0, (SplitStats(0, A, 1, seconds),) * splits)


def model_run(plan: vs.Plan, seconds: float, splits: int = 1) -> WholeRun:
    return run_of(GraphRun(plan, stats_of(seconds, splits)))


def seconds_of(history: GraphHistory | RunHistory, count: int | None = None) -> list[float]:
    return [run.seconds for run in history.last(count)]


def test_runs_of_an_older_plan_are_forgotten(run: vs.CompiledGraph) -> None:
    old, new = run.plan, dataclasses.replace(run.plan)
    graphs, models = GraphHistory(), RunHistory()
    assert seconds_of(graphs) == seconds_of(models) == []
    for plan, seconds in ((old, 1.0), (old, 2.0), (new, 3.0), (new, 4.0), (old, 5.0), (old, 6.0)):
        graphs.add(plan, stats_of(seconds))
        models.add(model_run(plan, seconds))
        if seconds == 4.0:
            assert seconds_of(graphs) == seconds_of(models) == [3.0, 4.0]
    assert seconds_of(graphs) == seconds_of(models) == [5.0, 6.0]
    assert seconds_of(graphs, 1) == seconds_of(models, 1) == [6.0]


def test_so_many_runs_are_retained_and_of_large_plans_fewer(run: vs.CompiledGraph) -> None:
    for splits, stored in ((1, RUNS), (MAX_SPLITS // 3, 3), (MAX_SPLITS + 1, 1)):
        graphs, models = GraphHistory(), RunHistory()
        for number in range(100):
            graphs.add(run.plan, stats_of(float(number), splits))
            models.add(model_run(run.plan, float(number), splits))
        assert seconds_of(graphs) == seconds_of(models) == list(range(100 - stored, 100))


def test_runs_that_compile_count_only_when_alone(run: vs.CompiledGraph) -> None:
    history, one = RunHistory(), model_run(run.plan, 5.0)
    history.add(one._replace(first=True))
    assert len(history.last()) == 1
    history.add(one)
    assert history.last() == (one,)


# -- as a picture ----------------------------------------------------------------------------------


def test_a_report_is_a_picture(run: vs.CompiledGraph, tmp_path: Path) -> None:
    run(x=np.ones((64, 256), np.float32))
    path = tmp_path / "report.svg"
    report = run.report()
    report.draw(path)
    root = ET.fromstring(path.read_text("utf-8"))
    texts = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
    tips = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert f"a run of {format_seconds(report.run.measured_s)}" in texts
    assert [t for t in texts if t.startswith(("busy", "copy", "host wait"))] == [
        *("busy 1.36 ms", "copy 16.4 us", "host wait 1.36 ms"),
        *("busy 2.72 ms", "copy 16.4 us", "host wait 2.72 ms"),
    ]
    assert "null:1, predicted: 1.36 ms" in tips and "null:1, measured: 2.72 ms" in tips
    assert "softmax on null:1, measured: 2.67 ms" in tips
    with pytest.raises(PlanError, match=r"\[draw\] expected a name that ends in .svg"):
        report.draw(tmp_path / "report.png")
