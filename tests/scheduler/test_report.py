"""run.report(): predicted beside measured, of a run, its devices and its ops."""

from __future__ import annotations

import json

import numpy as np
import pytest

import vksched as vs
from vksched.errors import PlanError

A, B = "null:0", "null:1"


@pytest.fixture
def run() -> vs.Run:
    clock = vs.SimulatedClock()
    specs = [vs.DeviceSpec(name, "null", bytes_per_s=1e8) for name in (A, B)]
    devices = [vs.NullDevice(specs[0], clock), vs.NullDevice(specs[1], clock, slowdown=2.0)]
    sched = vs.Scheduler(devices, trace=vs.Trace(clock))
    x = vs.input("x", (64, 256))
    end = vs.softmax(vs.exp(x, name="first"), name="second")
    return sched.compile(end, {"first": A, "second": B})


def test_a_report_needs_a_run(run: vs.Run) -> None:
    with pytest.raises(PlanError, match=r"\[report\] expected a run that has finished, got none"):
        run.report()


def test_a_report_has_the_run_its_devices_and_its_ops(run: vs.Run) -> None:
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


def test_a_report_is_a_table_and_plain_data(run: vs.Run) -> None:
    run(x=np.ones((64, 256), np.float32))
    report = run.report()
    lines = str(report).splitlines()
    assert lines[0].split() == ["predicted", "measured", "ratio", "known"]
    assert [line.split()[0] for line in lines[1:]] == ["run", A, "exp", B, "softmax"]
    assert lines[2].split()[-3:] == ["1.00", "0", "%"]
    data = json.loads(json.dumps(report.as_dict()))
    assert data["run"]["measured_s"] == report.run.measured_s
    assert [line["what"] for line in data["devices"]] == [A, B]
    assert data["ops"][0]["device"] == B
