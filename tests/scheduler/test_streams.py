"""Streams over unequal devices come near the sum of their rates, in any order of the devices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import A, B, C

import vksched as vs
from vksched.engine.replay.replay_tape import replay_tape
from vksched.topology.device_spec import DeviceSpec

X = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
FLOPS_PER_S = 1e8
RUNS = 96


def product(h: vs.Tensor, seed: int) -> vs.Tensor:
    values = np.random.default_rng(seed).standard_normal((64, 64)) * 0.05
    return vs.matmul(h, vs.weight(values.astype(np.float32)))


def chain() -> vs.Tensor:
    h = vs.input("x", X.shape)
    for i in range(12):
        h = vs.tanh(product(h, i))
    return h


def one_product() -> vs.Tensor:
    """What no cut can divide."""
    return product(vs.input("x", X.shape), 0)


def three_products() -> vs.Tensor:
    h = vs.input("x", X.shape)
    for i in range(3):
        h = vs.tanh(product(h, i))
    return h


def all_read_all() -> vs.Tensor:
    """Each product reads the sum of all before it: every cut has many values to move."""
    built = [vs.input("x", X.shape)]
    for i in range(8):
        total = built[0]
        for each in built[1:]:
            total = total + each
        built.append(vs.tanh(product(total, i)))
    return built[-1]


GRAPHS = (chain, one_product, three_products, all_read_all)
SPEEDS = ((1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (1.0, 0.25), (0.25, 1.0), (1.0, 1.0, 1.0))


def devices(clock: vs.SimulatedClock, speeds: tuple[float, ...]) -> list[vs.SimulatedDevice]:
    return [
        vs.SimulatedDevice(
            DeviceSpec(
                name,
                "null",
                flops_per_s=speed * FLOPS_PER_S,
                bytes_per_s=speed * FLOPS_PER_S,
                submit_s=1e-5,
            ),
            clock,
            vs.Link(1e9, 1e-5),
        )
        for name, speed in zip((A, B, C), speeds, strict=False)
    ]


def stream(graph: Callable[[], vs.Tensor], speeds: tuple[float, ...]) -> tuple[float, float]:
    """Seconds between two results: by the plan, and of a whole stream from first to last."""
    clock = vs.SimulatedClock()
    with vs.Scheduler(
        devices(clock, speeds), objective="throughput", trace=vs.Trace(clock)
    ) as sched:
        run = sched.compile(graph())
        start = clock.now()
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(RUNS)]
        results = [future.result() for future in futures]
        assert all((result == results[0]).all() for result in results)
        return run.plan.metrics.period_s, (clock.now() - start) / RUNS


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_stream_reaches_nine_tenths_of_the_sum_of_rates(graph: Callable[[], vs.Tensor]) -> None:
    alone, _ = stream(graph, (1.0,))
    for speeds in SPEEDS:
        planned, took = stream(graph, speeds)
        ideal = alone / sum(speeds)
        assert planned <= ideal / 0.9, (speeds, ideal / planned)
        assert took <= ideal / 0.9, (speeds, ideal / took)


def test_the_order_of_devices_changes_nothing() -> None:
    for speeds in ((1.0, 0.5), (1.0, 0.25)):
        for graph in GRAPHS:
            assert stream(graph, speeds) == pytest.approx(stream(graph, speeds[::-1]), rel=0.02)


def test_two_streams_take_the_same_time() -> None:
    assert all(
        stream(one_product, (1.0, 0.25)) == stream(one_product, (1.0, 0.25)) for _ in range(4)
    )


def test_runs_go_to_devices_in_proportion_to_their_speeds() -> None:
    clock, tape = vs.SimulatedClock(), vs.Tape()
    two, trace = devices(clock, (0.25, 1.0)), vs.Trace(clock, [tape])
    with vs.Scheduler(two, objective="throughput", trace=trace) as sched:
        run = sched.compile(one_product())
        assert len(run.plan.replicas) == 1 and len(run.plan_numbers) == 2
        expected = run(x=X)
        # one alone goes to the fast device
        assert [event.device for event in tape.select("split")] == [B]
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(50)]
        assert all((future.result() == expected).all() for future in futures)
        shares = Counter(event.device for event in tape.select("split"))
        assert 9 <= shares[A] <= 11 and shares[A] + shares[B] == 51
        plans = {event.plan: event.device for event in tape.select("split")}
        assert sorted(plans) == list(run.plan_numbers) and set(plans.values()) == {A, B}
        report = run.report(advice=False)
        assert json.loads(json.dumps(report.as_dict()))  # of the runs by one of both plans
    document = tape.contents()
    assert len(document.plans) == 2


def test_a_stream_goes_on_where_one_of_its_devices_is_lost() -> None:
    clock = vs.SimulatedClock()
    first, second = devices(clock, (1.0, 0.5))
    faulty = vs.FaultInjectionDevice(second, at=3)
    with vs.Scheduler([first, faulty], objective="throughput") as sched:
        run = sched.compile(one_product())
        assert run.plan.replicas
        expected = run(x=X)
        with pytest.warns(vs.VkschedWarning, match="is lost"):
            futures = [run.submit(x=X) for _ in range(40)]
            assert all((future.result() == expected).all() for future in futures)
        assert not run.plan.replicas and list(sched.failed_devices) == [B]


def test_a_stream_keeps_its_devices_where_memory_was_short_once() -> None:
    clock = vs.SimulatedClock()
    first, second = devices(clock, (1.0, 0.5))
    faulty = vs.FaultInjectionDevice(second, 0, "memory", "prepare", times=1)
    with vs.Scheduler([first, faulty], objective="throughput") as sched:
        with pytest.warns(vs.VkschedWarning, match="what is free now and one copy"):
            run = sched.compile(one_product())
        assert [own.copies for own in (run.plan, *run.plan.replicas)] == [1, 1]
        assert not sched.failed_devices


def test_a_stream_with_replicas_replays(tmp_path: Path) -> None:
    clock, tape = vs.SimulatedClock(), vs.Tape()
    with vs.Scheduler(
        devices(clock, (1.0, 0.5)), objective="throughput", trace=vs.Trace(clock, [tape])
    ) as sched:
        run = sched.compile(one_product())
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(12)]
        for future in futures:
            future.result()
    tape.save(tmp_path / "t.json")
    saved = vs.load_tape(tmp_path / "t.json")
    found = replay_tape(saved)
    assert found.difference is None and (found.plans, found.runs) == (2, 12)
    other = replace(saved, plans=(saved.plans[0], {**saved.plans[1], "replica": 2}))
    assert "none of its 1 replica" in str(replay_tape(other).difference)


def test_a_device_that_slows_down_gets_fewer_runs_and_then_another_plan() -> None:
    clock, tape = vs.SimulatedClock(), vs.Tape()
    two, trace = devices(clock, (1.0, 1.0)), vs.Trace(clock, [tape])
    with vs.Scheduler(two, objective="throughput", trace=trace) as sched:
        run = sched.compile(one_product())

        def flow(runs: int) -> float:
            start = clock.now()
            with clock.hold():
                futures = [run.submit(x=X) for _ in range(runs)]
            for future in futures:
                future.result()
            return (clock.now() - start) / runs

        both = flow(60)
        two[1].slowdown = 4.0
        tape.clear()
        flow(60)
        late = Counter(event.device for event in tape.select("split"))
        assert late[B] < late[A] / 2  # before anybody has planned again, too
        settled = flow(60)
        assert settled <= both * 2 / 1.25 / 0.9
