"""Drift: a plan is made again when its devices run at another pace and that makes a better one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import CPU, A, B, numpy_outputs

import vksched as vs
from vksched.common.errors import OutOfMemory
from vksched.engine.plan_builder import PlanBuilder
from vksched.engine.replan import BAND, MARGIN, ReplanReason, ReplanTracker
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.runtime.executors.speed_tracker import HALF_S
from vksched.runtime.run_stats import RunStats
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.perf_model import ANY
from vksched.topology.topology import Topology

WIDTH = 64
X = np.random.default_rng(0).random((WIDTH, WIDTH), np.float32)


def branches(count: int = 4, depth: int = 4, x: vs.Tensor | None = None) -> vs.Tensor:
    """Parts that know nothing of each other until their ends are added."""
    x = vs.input("x", X.shape) if x is None else x
    ends: list[vs.Tensor] = []
    for i in range(count):
        end = x
        for k in range(depth):
            values = np.full((WIDTH, WIDTH), (i + k + 1) / WIDTH / 4, np.float32)
            end = vs.relu(vs.matmul(end, vs.weight(values, f"b{i}.w{k}"), name=f"b{i}.p{k}"))
        ends.append(end)
    total = ends[0]
    for end in ends[1:]:
        total = vs.add(total, end)
    return total


class Stream:
    """Runs of one graph on null devices of given speeds, in flops a second."""

    def __init__(
        self,
        *speeds: float,
        output: vs.Tensor | None = None,
        submit_s: float = 1e-5,
        **options: object,
    ) -> None:
        self.clock, self.seen = vs.SimulatedClock(), vs.Recorder()
        specs = [
            DeviceSpec(f"null:{i}", "null", flops_per_s=s, bytes_per_s=s, submit_s=submit_s)
            for i, s in enumerate(speeds)
        ]
        self.devices = [vs.SimulatedDevice(spec, self.clock) for spec in specs]
        self.sched = vs.Scheduler(
            self.devices,
            trace=vs.Trace(self.clock, [self.seen]),
            optimize=False,
            timeout_s=1e6,
            copies=1,
            **options,  # type: ignore[arg-type]
        )
        self.run = self.sched.compile(branches() if output is None else output)

    def runs(self, count: int, *slowdowns: float) -> list[float]:
        """Return the seconds of each run."""
        for device, slowdown in zip(self.devices, slowdowns, strict=False):
            device.slowdown = slowdown
        out: list[float] = []
        for _ in range(count):
            start = self.clock.now()
            self.run(x=X)
            out.append(self.clock.now() - start)
        return out

    @property
    def used(self) -> set[str]:
        plan = self.run.plan
        return {plan.topology.devices[split.device].name for split in plan.splits}

    @property
    def again(self) -> list[vs.Event]:
        return self.seen.select("replan")


def test_the_plan_moves_off_a_device_that_slows_down() -> None:
    stream = Stream(1e9, 9e8)
    with stream.sched:
        before = stream.run.plan
        first = stream.runs(5, 1.0)[-1]
        assert stream.run.plan is before and not stream.again
        stream.runs(3, 4.0)
        assert stream.run.plan is not before and stream.again
        after = stream.runs(15, 4.0)[-1]
        (known,) = {e.device for e in stream.again}
        assert known == A
        reported = stream.again[-1].fields
        assert (
            reported["after_s"] < (1 - MARGIN) * reported["before_s"] and reported["ratio"] > BAND
        )
        assert "planned again after run" in stream.run.plan.explain()
        # the plan that knew it, from the start
        knew = replace(before.topology.devices[0], flops_per_s=1e9 / 4, bytes_per_s=1e9 / 4)
        topology = Topology((knew, *before.topology.devices[1:]), before.topology.links)
        plan = vs.plan_graph(before.graph, topology, policy="auto")
        assert after <= 1.2 * simulate(plan).seconds and after < 3.5 * first


@pytest.mark.parametrize("submit_s", [2e-4, 5e-5, 1e-6])
def test_the_plan_moves_off_a_device_whose_ops_are_small(submit_s: float) -> None:
    stream = Stream(1e9, 5e8, output=branches(1, 16), submit_s=submit_s)
    with stream.sched:
        assert stream.used == {A}
        stream.runs(5, 1.0)
        assert stream.used == {A}
        stream.runs(20, 4.0)
        assert stream.used == {B} and len(stream.again) == 1


@pytest.mark.parametrize("runs", [2, 3])
def test_a_plan_is_not_rebuilt_by_the_first_runs_of_the_one_before(runs: int) -> None:
    stream = Stream(1e9, 9e8)
    with stream.sched:
        for _ in range(40):
            stream.runs(runs, 3.0)
            stream.runs(runs, 1.0)
        few = len(stream.again)
        assert few <= 4
        for _ in range(80):
            stream.runs(runs, 3.0)
            stream.runs(runs, 1.0)
        assert len(stream.again) <= few + 1


def test_results_are_numpys_before_and_after() -> None:
    stream = Stream(1e9, 9e8)
    wanted = numpy_outputs(stream.run.plan.graph, {"x": X})[0]
    with stream.sched:
        for slowdown in (1.0, 4.0, 1.0):
            stream.devices[0].slowdown = slowdown
            for _ in range(12):
                assert np.array_equal(stream.run(x=X), wanted)
        assert stream.again


def test_a_pace_within_the_band_changes_nothing() -> None:
    stream = Stream(1e9, 9e8)
    with stream.sched:
        plan = stream.run.plan
        for slowdown in (1.0, 1.3, 0.8, 1.35, 1.0):
            stream.runs(15, slowdown, 1.0)
        assert stream.run.plan is plan and not stream.again


def test_a_device_that_wavers_leaves_its_band_a_few_times_only() -> None:
    stream = Stream(1e9, 9e8)
    with stream.sched:
        for _ in range(30):
            stream.runs(2, 3.0)
            stream.runs(2, 1.0)
        assert len(stream.again) <= 4


def test_no_other_plan_is_built_where_none_is_faster() -> None:
    stream = Stream(1e9, 1e7)
    with stream.sched:
        plan = stream.run.plan
        assert stream.used == {A}
        stream.runs(30, 4.0)  # still the faster one
        assert stream.run.plan is plan and not stream.again


def test_where_the_user_placed_everything_the_plan_stays() -> None:
    stream = Stream(1e9, 9e8)
    with stream.sched:
        run = stream.sched.compile(branches(), {"*": A})
        stream.devices[0].slowdown = 4.0
        plan = run.plan
        for _ in range(20):
            run(x=X)
        assert run.plan is plan


@pytest.mark.parametrize("options", [{"policy": "priority"}, {"on_device_failure": "raise"}])
def test_plans_that_may_not_change_do_not(options: dict[str, object]) -> None:
    stream = Stream(1e9, 9e8, **options)
    with stream.sched:
        plan = stream.run.plan
        stream.runs(30, 4.0)
        assert stream.run.plan is plan and not stream.again


def test_a_device_that_recovers_unseen_is_tried_again() -> None:
    stream = Stream(4e9, 9e8, output=branches(1, 8))
    with stream.sched:
        assert stream.used == {A}
        stream.runs(60, 1.0)
        stream.runs(60, 16.0)
        assert stream.used == {B}
        stream.runs(3, 1.0)
        assert stream.used == {B}  # nobody knows
        for _ in range(8):
            stream.clock.advance_to(stream.clock.now() + HALF_S)
            stream.runs(2, 1.0)
        assert stream.used == {A} and len(stream.again) == 2


def test_states_keep_their_values() -> None:
    x = vs.input("x", X.shape)
    total = vs.state(np.zeros_like(X), "total")
    y = vs.add(total, x, name="y")
    stream = Stream(1e9, 9e8)
    with stream.sched:
        run = stream.sched.compile([branches(x=x), y], updates={total: y})
        for count in range(1, 41):
            stream.devices[0].slowdown = 4.0 if count > 5 else 1.0
            _, found = run(x=X)
            assert np.allclose(found, count * X, rtol=1e-5)
        assert stream.again and np.allclose(stream.sched.read(total), 40 * X, rtol=1e-5)


@pytest.mark.parametrize("plan_s", [0.2, 1.0])
def test_where_planning_takes_as_long_as_many_runs_the_plan_changes_once_that_pays(
    plan_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, plan, planned = Stream(1e9, 9e8), PlanBuilder.plan, 0

    def slowly(self: PlanBuilder, *args: Any) -> Plan:
        nonlocal planned
        planned += 1
        stream.clock.advance_to(stream.clock.now() + plan_s)
        return plan(self, *args)

    monkeypatch.setattr(PlanBuilder, "plan", slowly)
    with stream.sched:
        stream.run = stream.sched.compile(branches())
        first = stream.runs(3, 1.0)[-1]
        slow = stream.runs(9, 4.0)[-1]
        assert slow > 3 * first and not stream.again
        stream.runs(200, 4.0)
        assert stream.runs(1)[0] < 0.6 * slow and len(stream.again) == 1
        stream.runs(200, 4.0)
        assert planned <= 4 and len(stream.again) == 1


def test_runs_under_way_end_before_the_new_plan() -> None:
    stream = Stream(1e9, 9e8)
    wanted = numpy_outputs(stream.run.plan.graph, {"x": X})[0]
    with stream.sched:
        stream.devices[0].slowdown = 4.0
        for future in [stream.run.submit(x=X) for _ in range(30)]:
            assert np.array_equal(future.result(), wanted)
        assert stream.again


# -- the decision itself ---------------------------------------------------------------------------


def topology(pace: float = 1.0) -> Topology:
    specs = [
        DeviceSpec(name, "null", flops_per_s=s, bytes_per_s=s, submit_s=1e-5)
        for name, s in ((A, 1e9), (B, 9e8))
    ]
    cpu = DeviceSpec(CPU, "cpu", flops_per_s=1e7, bytes_per_s=1e7)
    slow = replace(specs[0], costs=specs[0].costs.at_pace({ANY: pace})) if pace != 1.0 else specs[0]
    return Topology((slow, specs[1], cpu))


def stats(seconds: float) -> RunStats:
    return RunStats(0, seconds, 0, 0, 0, 0, 0)


class Alone:
    """The drift of one plan, with paces that a test sets."""

    def __init__(self, costs_s: float = 0.0) -> None:
        self.paces: dict[str, Mapping[str, float]] = {}
        self.graph, _ = vs.build_graph(branches())
        self.drift = ReplanTracker(lambda name: self.paces.get(name, {}))
        self.looks = 0
        # runs take what a test likes: what they would take on one device is no question here
        self.drift.alone.see = lambda stats: None  # type: ignore[method-assign]
        self.drift.begin(self.plan(topology()), costs_s)
        self.now_s = 0.0

    def plan(self, where: Topology) -> Plan:
        self.looks += 1
        return vs.plan_graph(self.graph, where, policy="auto")

    def see(self, seconds: float = 1.0) -> bool:
        self.now_s += 1.0
        self.drift.see(self.now_s, stats(seconds))
        return self.drift.left is not None

    def look(self, pace: float, plan: Callable[[Topology], Plan] | None = None) -> object:
        self.paces[A] = {ANY: pace}
        return self.drift.look(topology(pace), plan or self.plan)


def test_the_band_lies_around_the_pace_of_the_last_look() -> None:
    alone = Alone()
    for pace, left in ((1.0, False), (1.4, False), (0.7, False), (1.6, True)):
        alone.paces[A] = {ANY: pace}
        assert alone.see() is left, pace
    same = alone.drift._plan
    assert isinstance(same, Plan)
    assert (
        alone.look(1.6, lambda now: replace(same, topology=now)) is None
    )  # the same plan is not faster
    for pace, left in ((1.6, False), (1.1, False), (2.3, False), (1.0, True)):
        alone.paces[A] = {ANY: pace}
        assert alone.see() is left, pace


def test_a_change_has_to_pay_for_itself() -> None:
    for costs_s, taken in ((0.0, True), (1e6, False)):
        alone = Alone(costs_s)
        alone.paces[A] = {ANY: 4.0}
        assert alone.see(seconds=2e6)
        assert (alone.look(4.0) is not None) is taken


def test_a_plan_that_does_not_pay_yet_is_taken_when_it_does() -> None:
    alone = Alone()
    old = alone.drift._plan
    assert isinstance(old, Plan)
    new = alone.plan(topology(4.0))
    saved_s = simulate(replace(old, topology=topology(4.0))).seconds - simulate(new).seconds
    alone.drift.begin(old, 10.5 * saved_s)
    alone.paces[A] = {ANY: 4.0}
    looks: list[int] = []
    again: object = None
    while again is None:
        if alone.see(seconds=1.0):
            looks.append(alone.drift.runs)
            again = alone.look(4.0)
    assert looks == [1, 11]  # no plan is made in between
    assert isinstance(again, ReplanReason) and again.ratio == pytest.approx(4.0)


def test_a_refused_plan_waits_for_no_date_where_a_device_slows_down_further() -> None:
    alone = Alone(costs_s=1.0)
    alone.paces[A] = {ANY: 4.0}
    assert alone.see() and alone.look(4.0) is None
    assert not any(alone.see() for _ in range(50))
    alone.paces[A] = {ANY: 4.0 * 2 * BAND}
    assert alone.see()


def test_a_refused_plan_is_forgotten_where_the_device_recovers() -> None:
    alone = Alone(costs_s=1.0)
    alone.paces[A] = {ANY: 4.0}
    assert alone.see() and alone.look(4.0) is None
    alone.paces[A] = {ANY: 1.0}
    assert alone.see() and alone.look(1.0) is None
    assert not any(alone.see() for _ in range(2000))


def test_what_is_no_better_has_no_date() -> None:
    alone = Alone()
    same = alone.drift._plan
    assert isinstance(same, Plan)
    alone.paces[A] = {ANY: 4.0}
    assert alone.see() and alone.look(4.0, lambda now: replace(same, topology=now)) is None
    assert not any(alone.see() for _ in range(2000))


def test_planning_that_fails_is_tried_again_at_twice_the_runs() -> None:
    def fail(_: Topology) -> Plan:
        raise OutOfMemory("short for a moment")

    alone = Alone()
    alone.paces[A] = {ANY: 4.0}
    tried: list[int] = []
    for _ in range(40):
        if alone.see():
            tried.append(alone.drift.runs)
            with pytest.raises(OutOfMemory):
                alone.look(4.0, fail)
    assert tried == [1, 2, 4, 8, 16, 32]
    while not alone.see():
        pass
    assert alone.look(4.0) is not None


def test_looking_takes_no_more_time_than_runs() -> None:
    alone = Alone(costs_s=10.0)
    alone.paces[A] = {ANY: 4.0}
    assert [alone.see(3.0) for _ in range(4)] == [False, False, False, True]
    alone.look(4.0)
    alone.paces[A] = {ANY: 9.0}
    assert [alone.see(3.0) for _ in range(4)] == [False, False, False, True]


def test_a_device_that_is_out_of_use_is_not_looked_at() -> None:
    alone = Alone()
    out = topology()
    gone = replace(out.devices[0], disabled_reason="lost")
    alone.drift.begin(alone.plan(Topology((gone, *out.devices[1:]))), 0.0)
    alone.paces[A] = {ANY: 9.0}
    assert not alone.see()


# -- objectives ------------------------------------------------------------------------------------


def at_pace(pace: float) -> Topology:
    """A device that takes ten times the watts of the next one, which runs at some pace."""
    where = topology()
    first = replace(where.devices[0], busy_watts=300.0, idle_watts=1.0)
    second = replace(where.devices[1], busy_watts=30.0, idle_watts=1.0)
    second = replace(second, costs=second.costs.at_pace({ANY: pace}))
    return Topology((first, second, replace(where.devices[2], busy_watts=65.0, idle_watts=1.0)))


def recovered(objective: str, then: str, pace: float, runs: int = 100) -> tuple[object, Plan, Plan]:
    """Return the findings of a look after the second device has recovered: the reason to plan
    again, and both plans. then: objective of the new plan.
    """
    graph, _ = vs.build_graph(branches(1, 8))
    built: list[Plan] = []

    def planned(where: Topology, wanted: str) -> Plan:
        built.append(vs.plan_graph(graph, where, policy="auto", objective=wanted))
        return built[-1]

    drift = ReplanTracker(lambda _: {})
    drift.begin(planned(at_pace(50.0), objective), 0.0)
    drift.left, drift.runs = (B, pace / 50), runs
    again = drift.look(at_pace(pace), lambda where: planned(where, then))
    old, new = built
    return again, replace(old, topology=at_pace(pace)), new


def test_for_a_stream_the_time_between_results_decides() -> None:
    again, old, new = recovered("throughput", "throughput", 1.0)
    assert new.metrics.period_s < (1 - MARGIN) * old.metrics.period_s
    assert new.metrics.latency_s > old.metrics.latency_s  # of one run nothing is saved
    assert isinstance(again, ReplanReason) and again.objective == "throughput"
    assert (again.before, again.after) == (old.metrics.period_s, new.metrics.period_s)
    assert again.before_s == old.metrics.latency_s
    assert "; a run in a stream takes about " in str(again)
    assert recovered("latency", "throughput", 1.0)[0] is None  # that plan is no shorter


def test_for_energy_joules_decide() -> None:
    again, old, new = recovered("energy", "energy", 2.0)
    assert new.metrics.energy_j < old.metrics.energy_j / 2  # type: ignore[operator]
    assert new.metrics.latency_s > old.metrics.latency_s
    assert isinstance(again, ReplanReason)
    assert (again.before, again.after) == (old.metrics.energy_j, new.metrics.energy_j)
    assert "J, with the plan before it " in str(again)


def test_what_a_change_costs_counts_as_time_of_runs() -> None:
    again, old, _ = recovered("energy", "energy", 2.0, runs=100)
    assert isinstance(again, ReplanReason)
    share = 1 - again.after / again.before
    graph, _ = vs.build_graph(branches(1, 8))
    for costs_s, taken in ((0.9, True), (1.1, False)):
        drift = ReplanTracker(lambda _: {})
        plan = vs.plan_graph(graph, at_pace(50.0), policy="auto", objective="energy")
        drift.begin(plan, costs_s * share * old.metrics.latency_s * 100)
        drift.left, drift.runs = (B, 0.04), 100
        found = drift.look(
            at_pace(2.0),
            lambda where: vs.plan_graph(graph, where, policy="auto", objective="energy"),
        )
        assert (found is not None) is taken


def test_bytes_do_not_depend_on_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(1e9, 9e8, objective="memory")
    with stream.sched:
        plan = stream.run.plan
        monkeypatch.setattr(
            ReplanTracker, "look", lambda *_: pytest.fail("planning would be in vain")
        )
        stream.runs(30, 8.0)
        assert stream.run.plan is plan
