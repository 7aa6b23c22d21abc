"""Pace: a device that slows down is noticed from its runs, and plans know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.plan.costs.node_cost import node_cost
from vksched.runtime.executors.speed_tracker import EVERY_S, MOST, SHORT_S, SpeedTracker
from vksched.runtime.run_stats import RunStats, SplitStats
from vksched.topology.limits import Limits
from vksched.topology.perf_model import ANY, Curve, PerfModel

A, B = "null:0", "null:1"
X = np.ones((64, 1024), np.float32)


def network(ops: int = 4) -> vs.Tensor:
    at: vs.Tensor = vs.input("x", X.shape)
    for _ in range(ops):
        at = vs.softmax(vs.relu(at))
    return at


class Slowing:
    """A scheduler of null devices whose first one can be slowed down between runs."""

    def __init__(self, **options: Any) -> None:
        clock = vs.SimulatedClock()
        specs = [vs.DeviceSpec(n, "null", bytes_per_s=1e8, **options) for n in (A, B)]
        self.devices = [vs.SimulatedDevice(spec, clock) for spec in specs]
        self.sched = vs.Scheduler(self.devices, trace=vs.Trace(clock), optimize=False)
        self.run = self.sched.compile(network(), {"*": A})

    def runs(self, count: int, slowdown: float) -> None:
        self.devices[0].slowdown = slowdown
        for _ in range(count):
            self.run(x=X)

    @property
    def paces(self) -> dict[str, float]:
        return dict(self.sched.topology.devices[0].costs.paces)


@pytest.fixture
def slowing() -> Any:
    built = Slowing()
    with built.sched:
        yield built


def test_runs_as_expected_change_nothing(slowing: Slowing) -> None:
    before = slowing.sched.topology
    slowing.runs(20, 1.0)
    assert slowing.sched.topology == before and not slowing.paces


def test_a_device_that_slows_down_by_four_is_noticed(slowing: Slowing) -> None:
    slowing.runs(5, 1.0)
    slowing.runs(12, 4.0)
    assert slowing.paces["softmax"] == pytest.approx(4.0, rel=0.2)
    assert slowing.paces[ANY] == pytest.approx(4.0, rel=0.2)
    plan = slowing.sched.reserve(network(3))
    spec, graph = plan.topology.devices[0], plan.graph
    found = node_cost(spec, graph, graph.ops[-1])
    rough = node_cost(plan.topology.devices[1], graph, graph.ops[-1])
    assert found.seconds == pytest.approx(4 * rough.seconds, rel=0.2)
    assert found.measured and not rough.measured
    assert spec.slowdown == 1.0  # the watchdog has nothing to do with it
    assert not slowing.sched.topology.devices[1].costs
    slowing.runs(25, 1.0)
    assert all(pace == pytest.approx(1.0, rel=0.15) for pace in slowing.paces.values())


def test_one_run_that_was_held_up_changes_nothing(slowing: Slowing) -> None:
    slowing.runs(6, 1.0)
    slowing.runs(1, 50.0)
    slowing.runs(2, 1.0)
    assert not slowing.paces


def test_plans_of_a_slow_device_are_predicted_as_it_is_now(slowing: Slowing) -> None:
    slowing.runs(20, 4.0)
    other = slowing.sched.compile(network(2), {"*": A})
    other(x=X)
    reported = other.report()
    assert reported.run.ratio == pytest.approx(1.0, rel=0.2)
    slowing.run(x=X)
    assert slowing.run.report().run.ratio == pytest.approx(4.0, rel=0.2)  # its plan is older


def test_the_op_that_is_slow_is_distinguished() -> None:
    built = Slowing()
    with built.sched:
        runs = {
            name: built.sched.compile(getattr(vs, name)(vs.input("x", X.shape)), {"*": A})
            for name in ("relu", "exp", "softmax")
        }
        for _ in range(60):
            for name, run in runs.items():
                built.devices[0].slowdown = 3.0 if name == "softmax" else 1.0
                run(x=X)
        found = built.paces
    assert found["softmax"] > 2 * found["relu"] and found["relu"] == pytest.approx(1.0, rel=0.3)


def stats_of(
    run: vs.CompiledGraph,
    factor: float,
    longest: bool = True,
    start_s: float = 0.0,
    seconds: float = 1.0,
) -> RunStats:
    assert run.stats is not None
    splits = tuple(
        SplitStats(
            s.split, s.device, s.nodes, factor * s.device_s, s.longest_s if longest else None
        )
        for s in run.stats.splits
    )
    return RunStats(0, seconds, 0, 0, 0, 0, 0, splits, start_s)


class SteppedClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> float:
        return self.at_s


def test_many_short_runs_are_looked_at_now_and_then(slowing: Slowing) -> None:
    slowing.runs(1, 1.0)
    clock = SteppedClock()
    paces = SpeedTracker(clock)
    for _ in range(100):
        paces.see(slowing.run.plan, stats_of(slowing.run, 8.0, start_s=clock.at_s))
    assert paces.of(A)[ANY] == pytest.approx(8.0, rel=0.1)  # a guess is corrected at once
    clock.at_s += 1.01 * EVERY_S
    for _ in range(100):
        paces.see(slowing.run.plan, stats_of(slowing.run, 32.0, start_s=clock.at_s))
    assert paces.of(A)[ANY] == pytest.approx(8.0, rel=0.1)  # one of a hundred counts, as an outlier
    for _ in range(30):
        clock.at_s += 1.01 * EVERY_S
        paces.see(slowing.run.plan, stats_of(slowing.run, 32.0, start_s=clock.at_s))
    assert paces.of(A)["softmax"] == pytest.approx(32.0, rel=0.1)
    for _ in range(60):  # the first of short runs after a while has cold caches
        clock.at_s += 1.01 * EVERY_S
        for factor in (64.0, 16.0, 16.0):
            stats = stats_of(slowing.run, factor, start_s=clock.at_s, seconds=SHORT_S / 2)
            paces.see(slowing.run.plan, stats)
    assert paces.of(A)["softmax"] == pytest.approx(16.0, rel=0.1)


def test_a_guess_is_corrected_by_the_second_run_and_a_measured_cost_by_the_third() -> None:
    measured = PerfModel((Curve("*/bytes", ((-10.0, 1.0),)),), calls=1)
    for costs, runs in ((PerfModel(), 2), (measured, 3)):
        slowing = Slowing(costs=costs)
        with slowing.sched:
            slowing.runs(runs - 1, 4.0)
            assert not slowing.paces
            slowing.runs(1, 4.0)
            assert slowing.paces[ANY] == pytest.approx(4.0, rel=0.1)


def test_a_slow_first_run_or_second_one_changes_nothing() -> None:
    for slow in ((50.0, 1.0), (1.0, 50.0)):
        slowing = Slowing()
        with slowing.sched:
            for slowdown in (*slow, 1.0, 1.0, 1.0):
                slowing.runs(1, slowdown)
                assert not slowing.paces


def test_paces_stay_within_bounds_and_ignore_what_the_host_saw(slowing: Slowing) -> None:
    slowing.runs(1, 1.0)
    clock = SteppedClock()
    paces = SpeedTracker(clock)
    for _ in range(50):
        clock.at_s += 1.0
        paces.see(slowing.run.plan, stats_of(slowing.run, 1e9, longest=False, start_s=clock.at_s))
    assert paces.of(A) == {}  # a device without a clock of its own
    for _ in range(100):
        clock.at_s += 1.0
        paces.see(slowing.run.plan, stats_of(slowing.run, 1e9, start_s=clock.at_s))
    assert paces.of(A)[ANY] == pytest.approx(np.exp(MOST), rel=0.1)
    for _ in range(10):
        clock.at_s += 1.0
        paces.see(slowing.run.plan, stats_of(slowing.run, 0.0, start_s=clock.at_s))
    assert all(np.isfinite(list(paces.of(A).values())))


def launching() -> Slowing:
    """A device whose ops are small: a submission for each would take 0.8 times as long as they."""
    return Slowing(submit_s=5e-3)


@pytest.mark.parametrize("submit_s", [5e-3, 1e-3, 1e-5])
def test_a_device_without_measured_costs_is_seen_to_be_slow_where_ops_are_small(
    submit_s: float,
) -> None:
    built = Slowing(submit_s=submit_s)
    with built.sched:
        built.runs(5, 1.0)
        built.runs(15, 4.0)
        assert built.paces["softmax"] == pytest.approx(4.0, rel=0.2)
        built.runs(30, 1.0)
        assert all(pace == pytest.approx(1.0, rel=0.15) for pace in built.paces.values())


def see(
    paces: SpeedTracker, clock: SteppedClock, built: Slowing, factor: float, count: int = 20
) -> float:
    """Return the pace of the device after some runs that took as many times as long."""
    for _ in range(count):
        clock.at_s += 1.01 * EVERY_S
        paces.see(built.run.plan, stats_of(built.run, factor, start_s=clock.at_s))
    return paces.of(A).get(ANY, 1.0)


def test_launches_that_nobody_measured_are_no_slowness() -> None:
    built, clock = launching(), SteppedClock()
    with built.sched:
        built.runs(1, 1.0)
        paces = SpeedTracker(clock)
        assert see(paces, clock, built, 1.6) == 1.0
        assert see(paces, clock, built, 1.6 * 4) == pytest.approx(4.0, rel=0.2)
        assert see(paces, clock, built, 0.5) < 0.6  # less than the ops alone were thought to take
        # a launch takes less than a submission: the rest is slowness
        assert see(SpeedTracker(clock), clock, built, 8.0) == pytest.approx(4.6, rel=0.2)


def test_one_run_that_was_held_up_says_nothing_of_launches() -> None:
    built, clock = launching(), SteppedClock()
    with built.sched:
        built.runs(1, 1.0)
        paces = SpeedTracker(clock)
        see(paces, clock, built, 1.0, 4)
        assert see(paces, clock, built, 0.1, 1) == 1.0
        assert see(paces, clock, built, 1.0, 9) == 1.0
        assert see(paces, clock, built, 9.0, 1) == 1.0


def test_splits_of_next_to_no_work_say_nothing() -> None:
    built = Slowing(submit_s=1.0)
    with built.sched:
        built.runs(20, 4.0)
        assert not built.paces


@pytest.mark.parametrize(
    ("software", "calls", "slow"), [(True, 3, True), (True, 0, False), (False, 3, False)]
)
def test_what_slows_a_device_on_the_cores_slows_others_there(
    software: bool, calls: int, slow: bool
) -> None:
    """Other programs take the cores: a plan gains nothing by a move to a device that nobody saw."""
    feeds = {"limits": Limits(software=software), "costs": PerfModel(calls=calls)}
    built = Slowing(**feeds)
    with built.sched:
        built.runs(5, 1.0)
        built.runs(20, 4.0)
        first, second, _ = built.sched.topology.devices
        assert first.costs.paces and dict(first.costs.paces)[ANY] == pytest.approx(4.0, rel=0.2)
        assert bool(second.costs.paces) is slow
        if slow:
            assert second.costs.paces == ((ANY, dict(first.costs.paces)[ANY]),)
