"""Predict: what a run of a plan will take is what simulated devices then take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.plan.simulation.predict import predict
from vksched.topology.perf_model import Curve, PerfModel

A, B = "null:0", "null:1"


def network() -> vs.Tensor:
    x = vs.input("x", (64, 256))
    left = vs.relu(x, name="left")
    right = vs.exp(x, name="right")
    return vs.softmax(vs.add(left, right, name="sum"), name="end")


def scheduler(link: vs.Link | None = None, slowdown: float = 1.0, **options: Any) -> vs.Scheduler:
    clock = vs.SimulatedClock()
    specs = [vs.DeviceSpec(name, "null", bytes_per_s=1e8, **options) for name in (A, B)]
    devices = [vs.SimulatedDevice(spec, clock, link=link, slowdown=slowdown) for spec in specs]
    return vs.Scheduler(devices, trace=vs.Trace(clock), optimize=False)


@pytest.mark.parametrize(
    "placement",
    [
        {"*": A},
        {"left": B, "right": A, "sum": A, "end": A},
        {"left": A, "right": B, "sum": A, "end": B},
    ],
)
@pytest.mark.parametrize("link", [None, vs.Link(1e7, 1e-4), vs.Link(1e12, 0.0)])
def test_a_run_takes_what_was_predicted(placement: Mapping[str, str], link: vs.Link | None) -> None:
    with scheduler(link) as sched:
        run = sched.compile(network(), placement)
        expected = predict(run.plan)
        run(x=np.ones((64, 256), np.float32))
        stats = run.stats
    assert stats is not None
    assert stats.seconds == pytest.approx(expected.seconds, rel=1e-9)
    for measured, split in zip(stats.splits, expected.splits, strict=True):
        assert measured.device_s == pytest.approx(split.device_s, rel=1e-9)
        assert measured.device == split.device


def test_costs_change_what_is_predicted_and_what_is_known() -> None:
    curves = (Curve("relu/bytes", ((-10.0, 3.0),)),)
    costs = PerfModel(curves, launch_s=1e-5, start_s=1e-4, calls=1)
    with scheduler() as rough, scheduler(costs=costs) as known:
        before = predict(rough.compile(network(), {"*": A}).plan).splits[0]
        after = predict(known.compile(network(), {"*": A}).plan).splits[0]
    assert after.first_s["relu"] == pytest.approx(3 * before.first_s["relu"] + 1e-5)
    assert after.first_s["softmax"] == pytest.approx(before.first_s["softmax"] + 1e-5)
    assert before.measured_s == 0 and before.known_s["relu"] == 0
    assert after.measured_s == pytest.approx(after.fixed_s + after.now_s["relu"])
    assert after.fixed_s == 1e-4


def test_a_slow_device_takes_longer_than_predicted() -> None:
    with scheduler(slowdown=4.0) as sched:
        run = sched.compile(network(), {"*": A})
        run(x=np.ones((64, 256), np.float32))
        expected, stats = predict(run.plan), run.stats
    assert stats is not None
    assert stats.splits[0].device_s == pytest.approx(4 * expected.splits[0].device_s)
