"""Which devices a report says to remove or to add: by simulation, and over a margin only."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import vksched as vs
from vksched.engine.report.advice import Advice, _cards, advise
from vksched.engine.report.run_history import GraphRun, PlanOptions, WholeRun, run_of
from vksched.planner.comparison import AS_IT_IS, Comparison, Outcome
from vksched.runtime.run_stats import RunStats
from vksched.schedule import Metrics, Objective
from vksched.schedule.model.objectives import LATENCY
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology

A, B = "null:0", "null:1"
SHAPE = (64, 256)
BYTES = 4.0 * SHAPE[0] * SHAPE[1]
X = np.ones(SHAPE, np.float32)


def scheduler(
    speeds: dict[str, float], policy: str = "auto", objective: str = "latency"
) -> vs.Scheduler:
    """Devices on which an op of one operand takes 1 us / speed, so that no CPU is faster."""
    clock = vs.SimulatedClock()
    devices = [
        vs.SimulatedDevice(
            vs.DeviceSpec(
                name,
                "null",
                flops_per_s=1e18,
                bytes_per_s=2e6 * BYTES * speed,
                submit_s=0.0,
                loop_latency_s=0.0,
            ),
            clock,
            vs.Link(1e7 * BYTES),
        )
        for name, speed in speeds.items()
    ]
    trace = vs.Trace(clock)
    return vs.Scheduler(devices, trace=trace, policy=policy, timeout_s=1e4, objective=objective)


def outcome(
    text: str, metrics: Metrics | None, measured: bool, watts_assumed: bool = False
) -> Outcome:
    """A row of a comparison, on devices that were measured or not."""
    machine, estimated = Topology((vs.DeviceSpec("cpu", "cpu"),)), () if measured else (A,)
    return Outcome("all", (), text, machine, None, metrics, {}, estimated, {}, watts_assumed)


def advice_of(objective: Objective, *rows: Outcome) -> Advice:
    return Advice(Comparison(rows, objective))


def chain(length: int = 4) -> vs.Tensor:
    x = vs.input("x", SHAPE)
    for number in range(length):
        x = vs.exp(vs.softmax(x), name=f"n{number}")
    return x


def branches() -> vs.Tensor:
    x = vs.input("x", SHAPE)
    ends = [vs.softmax(vs.exp(vs.softmax(x + float(i)))) for i in range(2)]
    return vs.matmul(ends[0][:1], vs.transpose(ends[1][:1]))


def reported(
    sched: vs.Scheduler, outputs: vs.Tensor, **where: str
) -> tuple[vs.CompiledGraph, vs.RunReport]:
    run = sched.compile(outputs, where or None)
    run(x=X)
    return run, run.report()


def test_a_slow_device_is_advised_against_and_the_run_without_it_takes_that_long() -> None:
    with scheduler({A: 1.0, B: 8.0}, policy="priority") as sched:
        run, report = reported(sched, chain())
    assert report.advice is not None and set(run.stats.device_seconds) == {A}  # type: ignore[union-attr]
    best = report.advice.found[0]
    assert best.text.startswith(f"without {A}") and report.run.measured_s > 5 * (best.seconds or 0)
    with scheduler({B: 8.0}) as sched:
        _, alone = reported(sched, chain())
    assert alone.run.measured_s == pytest.approx(best.seconds)  # what was simulated comes true
    shown = [line for line in str(report).splitlines() if line.startswith(f"without {A}")]
    assert len(shown) == 1 and "instead of" in shown[0] and ", by simulation" in shown[0]
    assert "devices are estimated, not measured" in shown[0]


def test_another_device_is_advised_where_two_would_share_the_work() -> None:
    with scheduler({A: 1.0}) as sched:
        _, report = reported(sched, branches())
    assert report.advice is not None
    best = report.advice.found[0]
    assert best.text == f"with another {A}" and 0.25 < report.advice.gain(best) <= 0.5
    with scheduler({A: 1.0, B: 1.0}) as sched:
        _, two = reported(sched, branches())
    assert two.run.measured_s == pytest.approx(best.seconds)
    assert two.advice is not None and not two.advice.found


def test_a_pin_to_a_slow_device_is_seen() -> None:
    with scheduler({A: 8.0, B: 1.0}) as sched:
        _, pinned = reported(sched, chain(), n1=B)
        _, free = reported(sched, chain(5))
    assert pinned.advice is not None and free.advice is not None
    assert f"without {B}" in pinned.advice.found[0].text
    assert not free.advice.found
    assert free.advice.lines() == [
        "no device to remove or to add would make a run over 25 % shorter, by simulation"
    ]


def test_of_equal_cards_one_is_suggested_and_none_that_the_cpu_plays() -> None:
    with scheduler({A: 1.0, B: 1.0, "null:2": 2.0}) as sched:
        plan = sched.compile(branches()).plan
    equal = [spec.name for spec, _ in _cards(plan.topology)]
    assert equal == [A, "null:2"]
    played, *rest = plan.topology.devices
    played = dataclasses.replace(played, limits=Limits(software=True))
    topology = dataclasses.replace(plan.topology, devices=(played, *rest))
    assert [spec.name for spec, _ in _cards(topology)] == [B, "null:2"]
    lost = dataclasses.replace(rest[0], disabled_reason="lost")
    topology = dataclasses.replace(topology, devices=(played, lost, *rest[1:]))
    assert [spec.name for spec, _ in _cards(topology)] == ["null:2"]


def test_without_other_devices_nothing_is_reported() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(chain())
        run(x=X)
        report = run.report()
    assert report.advice is not None and report.advice.alternatives == () == tuple(
        report.advice.lines()
    )


def test_nobody_is_advised_who_did_not_ask() -> None:
    with scheduler({A: 1.0}) as sched:
        run, _ = reported(sched, branches())
        report = run.report(advice=False)
    assert report.advice is None and report.as_dict()["advice"] is None


def test_graphs_of_a_run_add_up() -> None:
    with scheduler({A: 1.0, B: 8.0}, policy="priority") as sched:
        plans = [sched.compile(chain(n)).plan for n in (2, 4)]
    stats = RunStats(0, 1.0, 0, 0, 0, 0, 0)
    graphs = tuple(GraphRun(plan, stats) for plan in plans)
    each = [advise(run_of(graph)) for graph in graphs]
    both = advise(WholeRun(0.0, 1.0, (*graphs, graphs[0])))
    assert both.now.seconds == pytest.approx(
        2 * (each[0].now.seconds or 0) + (each[1].now.seconds or 0)
    )
    known = [{c.text: c.seconds or 0.0 for c in advice.alternatives} for advice in each]
    assert {c.text for c in both.alternatives} == known[0].keys() == known[1].keys() - {AS_IT_IS}
    for choice in both.alternatives:
        assert choice.seconds == pytest.approx(2 * known[0][choice.text] + known[1][choice.text])


def test_the_same_plan_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with scheduler({A: 1.0, B: 8.0}, policy="priority") as sched:
        run, first = reported(sched, chain())
        monkeypatch.setattr("vksched.engine.report.advice.compare_plan", None)
        run(x=X)
        assert run.report().advice == first.advice


@pytest.mark.parametrize(
    ("now", "then", "gain", "worth"),
    [
        (True, True, 0.06, True),
        (True, True, 0.04, False),
        (True, False, 0.2, False),
        (False, True, 0.2, False),
        (False, False, 0.3, True),
        (True, True, -1.0, False),
    ],
)
def test_a_gain_has_to_be_over_the_margin(now: bool, then: bool, gain: float, worth: bool) -> None:
    choice = outcome(f"without {B}", Metrics(2.0 * (1 - gain), 0.0), then)
    others = choice, outcome("cpu alone", None, True)
    advice = advice_of(LATENCY, outcome(AS_IT_IS, Metrics(2.0, 0.0), now), *others)
    assert advice.found == ((choice,) if worth else ())
    data = json.loads(json.dumps(advice.as_dict()))
    assert data["by"] == "simulation"
    assert [each["worth_it"] for each in data["alternatives"]] == [worth, False]
    assert data["alternatives"][0]["gain"] == pytest.approx(gain)
    (line,) = advice.lines()
    assert line.endswith(("by simulation", "estimated, not measured"))
    assert ("estimated" in line) == (worth and not (now and then))


def test_placements_of_the_caller_and_a_cpu_that_competes_are_retained() -> None:
    with scheduler({A: 8.0, B: 1.0}) as sched:
        run = sched.compile(chain(), {"n1": B})
        run(x=X)
        (last,) = run._compiled.history.last()
    assert last.graphs[0].options == PlanOptions((("n1", B),), False, "auto")
    free = advise(run_of(GraphRun(run.plan, last.graphs[0].stats)))
    stored = advise(last)
    assert free.now.seconds == stored.now.seconds  # both of the plan as it is


# -- other objectives ------------------------------------------------------------------------------


def test_in_a_stream_the_time_between_results_is_what_counts() -> None:
    with scheduler({A: 1.0}, objective="throughput") as sched:
        _, report = reported(sched, chain())
    with scheduler({A: 1.0}) as sched:
        _, alone = reported(sched, chain())
    assert report.advice is not None and alone.advice is not None
    assert not alone.advice.found  # one layer after the other: no card makes a run shorter
    assert report.advice.comparison.objective.name == "throughput"
    best = report.advice.found[0]
    assert best.text == f"with another {A}" and report.advice.gain(best) == pytest.approx(0.5)
    (line,) = report.advice.lines()
    assert line.startswith(f"with another {A}: a run in a stream would take ")
    with scheduler({A: 1.0, B: 1.0}, objective="throughput") as sched:
        plan = sched.compile(chain()).plan
    assert report.advice.comparison.value(best) == pytest.approx(plan.metrics.period_s)


def test_for_memory_the_bytes_of_all_graphs_count() -> None:
    weights = [vs.weight(np.full((256, 256), i, np.float32)) for i in range(6)]

    def layers(count: int) -> vs.Tensor:
        x = vs.input("x", SHAPE)
        for weight in weights[:count]:
            x = vs.softmax(x @ weight)
        return x

    with scheduler({A: 1.0}, objective="memory") as sched:
        plans = [sched.compile(layers(n)).plan for n in (6, 4)]
    stats = RunStats(0, 1.0, 0, 0, 0, 0, 0)
    graphs = tuple(GraphRun(plan, stats) for plan in plans)
    found = advise(WholeRun(0.0, 1.0, (*graphs, graphs[0])))
    peaks = [plan.buffers()[A].peak_bytes for plan in plans]
    assert found.comparison.objective.name == "memory"
    assert found.comparison.value(found.now) == sum(peaks)
    # nor is the CPU advised, whose weights count nothing
    assert [choice.text for choice in found.alternatives] == [f"with another {A}"]
    (line,) = found.lines()
    assert line.startswith(f"with another {A}: the fullest device would hold ")
    assert " instead of " in line and line.endswith(" less), by simulation")


def test_for_energy_assumed_watts_are_reported() -> None:
    energy = Objective.of("energy")
    now = outcome(AS_IT_IS, Metrics(1.0, 1.0, 0, 8.0), True)
    then = outcome(f"without {B}", Metrics(4.0, 4.0, 0, 2.0), True, watts_assumed=True)
    (line,) = advice_of(energy, now, then).lines()
    assert line == (
        f"without {B}: a run would take 2 J instead of 8 J (75 % less), by simulation; watts are "
        "assumed"
    )
    little = outcome(f"without {B}", Metrics(1.0, 1.0, 0, 7.0), True)
    assert advice_of(energy, now, little).found == (little,)
    assert not advice_of(energy, now, dataclasses.replace(little, watts_assumed=True)).found
    assert advice_of(energy, now, dataclasses.replace(little, watts_assumed=True)).lines() == [
        "no device to remove or to add would make a run take over 25 % less energy, by simulation"
    ]
