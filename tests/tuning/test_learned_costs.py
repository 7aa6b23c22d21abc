"""Lessons: what runs showed of costs is kept, and later schedulers begin with it."""

from __future__ import annotations

import datetime
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.errors import UnsupportedOp
from vksched.plan.plan import Plan
from vksched.plan.simulation.predict import predict
from vksched.planner.planner import plan_graph
from vksched.storage import disk_cache
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology
from vksched.tuning import calibrator as calibrator_module
from vksched.tuning.calibration_types import Calibration, Overheads, Sample, speeds_of
from vksched.tuning.calibrator import cost_cache_key
from vksched.tuning.cost_cache import CostCache
from vksched.tuning.learned_costs import NEAR, SLOWER, ObservedCall, lesson_of
from vksched.tuning.tunable_calls import shader_hash

A, B = "vulkan:0", "vulkan:1"
SPEC = DeviceSpec(A, "vulkan", "Card", "driver 1", memory_node="0123", launch_s=1e-6)
TODAY = datetime.date(2024, 2, 29)
X = np.ones((128, 128), np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of this test's own, which "auto" may use."""
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("VKSCHED_TUNE", "1")
    return tmp_path


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices that nobody can measure: what is known comes from runs alone."""

    def refuse(*args: object) -> Any:
        raise UnsupportedOp("[calibrate] expected no measurement")

    monkeypatch.setattr(calibrator_module, "open_benchmarker_of", refuse)
    yield


def network() -> vs.Tensor:
    h = vs.input("x", X.shape)
    for _ in range(4):
        h = vs.softmax(h @ vs.weight(X / 128))
    return h


class Cards:
    """A scheduler of two cards that are not as fast as their specs say."""

    def __init__(self, *slowdowns: float) -> None:
        clock = vs.SimulatedClock()
        self.specs = [replace(SPEC, name=n, memory_node=n, flops_per_s=1e10) for n in (A, B)]
        self.devices = [
            vs.SimulatedDevice(spec, clock, slowdown=slowdown)
            for spec, slowdown in zip(self.specs, slowdowns, strict=True)
        ]
        self.true = [
            replace(
                spec,
                flops_per_s=spec.flops_per_s / s,
                bytes_per_s=spec.bytes_per_s / s,
                loop_latency_s=spec.loop_latency_s * s,
                submit_s=spec.submit_s * s,
                launch_s=spec.launch_s * s,
            )
            for spec, s in zip(self.specs, slowdowns, strict=True)
        ]
        self.sched = vs.Scheduler(self.devices, trace=vs.Trace(clock))
        self.run = self.sched.compile(network())

    def __enter__(self) -> Cards:
        return self

    def __exit__(self, *raised: object) -> None:
        self.sched.close()

    def runs(self, count: int) -> None:
        for _ in range(count):
            self.run(x=X)

    def true_plan(self) -> Plan:
        """The plan of somebody who knows how fast the cards are."""
        graph, topology = self.run.plan.graph, self.sched.topology
        known = Topology((*self.true, topology.devices[-1]), topology.links)
        return plan_graph(graph, known, policy="auto", with_cpu=False)


def placed(plan: Plan) -> dict[str, str]:
    return {node.name: plan.device_of(node.name) for node in plan.graph.ops}


@pytest.mark.parametrize("slowdowns", [(8.0, 1.0), (1.0, 8.0), (3.0, 1.0)])
def test_the_third_run_has_the_plan_of_true_costs_and_so_has_the_next_start(
    unmeasured: None, slowdowns: tuple[float, float]
) -> None:
    with Cards(*slowdowns) as cards:
        wanted = placed(cards.true_plan())
        cards.runs(3)
        assert placed(cards.run.plan) == wanted
        cards.runs(8)
        assert placed(cards.run.plan) == wanted
    with Cards(*slowdowns) as cards:
        assert placed(cards.run.plan) == wanted
        cards.runs(1)
        assert cards.run.stats is not None
        expected_s = predict(cards.run.plan).seconds
        assert expected_s == pytest.approx(cards.run.stats.seconds, rel=0.25)


def test_a_measured_card_begins_with_the_plan_of_true_costs() -> None:
    with Cards(8.0, 1.0) as cards:
        assert placed(cards.run.plan) == placed(cards.true_plan())


def test_measurements_that_are_wrong_are_corrected_for_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong:
        """A benchmarker for which each call takes as long on any device."""

        quick, readied_s = True, 0.0

        def __init__(self, device: Any, *args: object) -> None:
            self.spec, self.name = device.spec, device.name

        def overheads(self) -> Overheads:
            return Overheads(1e-6, 1e-6, 1e-6, 1e-6)

        def seconds(self, *args: object) -> float:
            return 1e-4

        def transfers(self, size_bytes: int) -> Any:
            raise UnsupportedOp("[calibrate] expected no transfers")

    monkeypatch.setattr(calibrator_module, "open_benchmarker_of", Wrong)
    with Cards(8.0, 1.0) as cards:
        assert set(placed(cards.run.plan).values()) == {A}
        wanted = placed(cards.true_plan())
        cards.runs(4)
        assert placed(cards.run.plan) == wanted
    with Cards(8.0, 1.0) as cards:
        assert placed(cards.run.plan) == wanted


def test_no_lesson_is_retained_where_the_user_decided(
    unmeasured: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKSCHED_TUNE", "0")
    with Cards(8.0, 1.0) as cards:
        cards.runs(5)
    assert not [*folder.rglob("*.json")]


def test_a_device_that_is_slowed_down_on_purpose_teaches_nothing(folder: Path) -> None:
    slowed = vs.ThrottledDevice(vs.SimulatedDevice(SPEC, vs.SimulatedClock()), 1.0)
    with vs.Scheduler([slowed]) as sched:
        run = sched.compile(network())
        for _ in range(5):
            run(x=X)
    assert not [*folder.glob("costs/0123*.json")]


def test_a_folder_that_cannot_be_written_costs_a_warning_and_no_run(
    unmeasured: None, folder: Path
) -> None:
    (folder / "costs" / "lock").mkdir(parents=True)  # where the lock is to be
    disk_cache._warned.clear()
    with pytest.warns(vs.VkschedWarning, match="results are not cached"):
        with Cards(8.0, 1.0) as cards:
            cards.runs(5)


SEEN = ObservedCall("relu", "relu", "bytes", 2.0**-10, 2.0**-10)
PLACE = ("relu", "bytes", -10)


def known(pace: float = 1.0, *samples: Sample) -> Calibration:
    samples = samples or (Sample("relu", "bytes", -10.0, 1.0),)
    return Calibration(speeds_of(SPEC), Overheads(0.0), samples=samples, pace=pace)


def taught(of: Calibration, usual: float, overhead: float = 0.0) -> Calibration:
    lesson = lesson_of(SPEC, of, {PLACE: SEEN}, math.log(usual), {"relu": overhead})
    return of if lesson is None else of.plus(lesson)


def test_a_device_becomes_faster_at_once_and_slower_by_half_of_the_way() -> None:
    assert taught(known(), 0.25).pace == pytest.approx(0.25)
    assert taught(known(2.0), 0.5).pace == pytest.approx(1.0)
    assert taught(known(), 4.0).pace == pytest.approx(4.0**SLOWER)
    busy = taught(known(), 100.0)
    assert busy.pace == pytest.approx(10.0)
    assert taught(busy, 0.1).pace == pytest.approx(1.0)  # one quiet start is enough
    assert busy.costs.factor(["relu/bytes"], 2.0**-10)[0] == pytest.approx(10.0)


def test_what_is_nearly_as_known_changes_nothing() -> None:
    near = math.exp(0.9 * NEAR)
    for usual in (near, 1 / near):
        assert lesson_of(SPEC, known(), {PLACE: SEEN}, math.log(usual), {"relu": 0.1}) is None
    assert lesson_of(SPEC, known(), {PLACE: SEEN}, 3.0, {}) is None  # no run told of it


def test_differences_among_ops_stay_with_their_samples() -> None:
    found = taught(known(), 1.0, math.log(2.0))
    assert found.pace == 1.0 and found.samples[0].factor == pytest.approx(2.0)


def test_a_call_that_was_never_measured_is_what_runs_showed() -> None:
    """Most of the time is the new call's: nothing is known of the others."""
    other = Sample("exp", "bytes", -10.0, 1.0)
    found = taught(known(1.0, other), 3.0)
    (relu,) = (sample for sample in found.samples if sample.op == "relu")
    assert relu.factor == pytest.approx(3.0) and found.pace == 1.0 and other in found.samples
    nothing = Calibration(speeds_of(SPEC))
    found = taught(nothing, 3.0)
    assert found.costs.calls and found.overheads is not None
    assert found.overheads.launch_s == SPEC.launch_s
    assert found.costs.factor(["relu/bytes"], 2.0**-10)[0] == pytest.approx(3.0, rel=0.01)


def test_guessed_overheads_give_way_to_measured_ones() -> None:
    guess = taught(Calibration(speeds_of(SPEC)), 3.0)
    assert guess.guessed and guess.overheads is not None
    assert Calibration.from_dict(guess.as_dict()).guessed
    measured = Calibration(speeds_of(SPEC), Overheads(7.0))
    for both in (guess.plus(measured), measured.plus(guess)):
        assert both.overheads == Overheads(7.0) and not both.guessed
        assert [sample.op for sample in both.samples] == ["relu"]
    again = guess.plus(taught(guess, 9.0))
    assert again.guessed and again.overheads == guess.overheads


def test_half_of_a_slow_pace_is_forgotten_each_day() -> None:
    slow = replace(known(4.0), seen=TODAY.isoformat())
    assert slow.recovered(TODAY) is slow
    assert slow.recovered(TODAY + datetime.timedelta(1)).pace == pytest.approx(2.0)
    assert slow.recovered(TODAY + datetime.timedelta(30)).pace == pytest.approx(1.0)
    assert slow.recovered(TODAY - datetime.timedelta(3)) is slow  # a clock that was set back
    fast = replace(slow, pace=0.5)
    assert fast.recovered(TODAY + datetime.timedelta(30)) is fast


def test_a_lesson_survives_the_file() -> None:
    found = replace(taught(known(), 4.0, 1.0), spent_s=0.3)
    assert Calibration.from_dict(found.as_dict()) == found
    old = found.as_dict()
    for name in ("pace", "seen", "spent_s"):  # as a file of before has none
        del old[name]
    assert Calibration.from_dict(old).pace == 1.0


def test_a_measurement_begins_at_its_own_pace() -> None:
    measured = replace(known(), samples=(Sample("relu", "bytes", -10.0, 3.0),))
    found = taught(known(), 4.0).plus(measured)
    assert found.pace == 1.0 and found.samples[0].factor == 3.0


PROGRAM = """
import numpy as np, vksched as vs
sched = vs.Scheduler(["cpu"])
x = vs.input("x", (256, 256))
run = sched.compile(vs.softmax(x @ vs.weight(np.ones((256, 256), np.float32))))
for _ in range(6):
    run(x=np.ones((256, 256), np.float32))
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_a_program_that_ends_without_closing_keeps_its_lessons(folder: Path, end: str) -> None:
    cpu = vs.Scheduler(["cpu"], tune=False)
    spec = cpu.devices[-1].spec
    cpu.close()
    identity = cost_cache_key(spec)
    assert identity is not None
    spent = Calibration(speeds_of(spec), spent_s=1.0)  # it measures nothing itself
    assert CostCache().add(identity, spent)
    environment = {**os.environ, "VKSCHED_CACHE": str(folder), "VKSCHED_TUNE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], env=environment)
    assert done.returncode == (3 if end else 0)
    found = CostCache().load(identity)
    assert found is not None and {sample.name for sample in found.samples} >= {"matmul"}


@pytest.mark.parametrize("kind", ["vulkan", "null"])
def test_a_call_that_was_never_measured_is_learnt_with_the_shaders_that_ran_it(kind: str) -> None:
    spec, others = replace(SPEC, kind=kind), known(1.0, Sample("tanh", "bytes", -10.0, 1.0))
    lesson = lesson_of(spec, others, {PLACE: SEEN}, math.log(4.0), {"relu": 0.0})
    assert lesson is not None
    (sample,) = (each for each in lesson.samples if each.op == "relu")
    assert sample.shaders == (shader_hash("relu") if kind == "vulkan" else "")
