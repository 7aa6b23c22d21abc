"""Objectives of plans: machines where each one needs another plan, and what holds for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from graphs import CPU, A, B, C

import vksched as vs
from vksched.common.errors import PlanError
from vksched.ir.build_graph import build_graph
from vksched.plan.plan import Plan
from vksched.plan.simulation.plan_metrics import plan_metrics
from vksched.plan.types.decision import dominates
from vksched.plan.verify.happens_before import check_plan
from vksched.planner.planner import compare_objectives
from vksched.schedule.model.objectives import WORDS
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology
from vksched.topology.topology_file import load_topology

WIDTH = 128
WEIGHT = 4 * WIDTH * WIDTH
FLOPS = 2 * WIDTH**3 + WIDTH * WIDTH
"""Of a layer: a product and a sum, on devices where arithmetic takes the time."""


def topology(
    speeds: Sequence[float],
    watts: Sequence[tuple[float, float]] = (),
    link: Link | None = None,
    memory: int = 1 << 30,
) -> Topology:
    """Null devices of these speeds and watts; a slow CPU that takes none."""
    inputs = list(watts) or [(100.0, 10.0)] * len(speeds)
    devices = [
        DeviceSpec(
            f"null:{i}",
            "null",
            flops_per_s=speed,
            bytes_per_s=1e15,
            submit_s=0.0,
            memory_bytes=memory,
            max_buffer_bytes=min(memory, 1 << 26),
            busy_watts=busy,
            idle_watts=idle,
        )
        for i, (speed, (busy, idle)) in enumerate(zip(speeds, inputs, strict=True))
    ]
    host = DeviceSpec(CPU, "cpu", flops_per_s=1e6, busy_watts=0.0, idle_watts=0.0)
    return Topology((*devices, host), Links((), link or Link(1e13)))


def layers(count: int, x: vs.Tensor | None = None, name: str = "") -> vs.Tensor:
    """A chain of layers, each with a weight of WEIGHT bytes and FLOPS of arithmetic."""
    x = vs.input("x", (WIDTH, WIDTH)) if x is None else x
    for i in range(count):
        values = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
        product = vs.matmul(x, vs.weight(values, name=f"{name}w{i}"), name=f"{name}p{i}")
        x = vs.add(product, 1.0, name=f"{name}s{i}")
    return x


def plan(output: vs.Tensor, where: Topology, objective: object = "latency", **more: object) -> Plan:
    graph, _ = build_graph(output)
    return check_plan(
        vs.plan_graph(graph, where, policy="auto", objective=objective, **more)  # type: ignore[arg-type]
    )


def used(plan: Plan) -> set[str]:
    return {plan.topology.devices[s.device].name for s in plan.splits}


UNEQUAL = (4e9, 3e9, 1e9)
THRIFTY = ((300.0, 0.0), (200.0, 0.0), (10.0, 0.0))
"""Power of the devices of UNEQUAL: the slowest one takes least for the same work."""
LAYER_S = FLOPS / 4e9
"""On the fastest device of UNEQUAL."""


def test_each_objective_takes_another_plan() -> None:
    where, output = topology(UNEQUAL, THRIFTY), layers(8)
    fastest = plan(output, where)
    assert used(fastest) == {A}
    assert fastest.metrics.latency_s == pytest.approx(8 * LAYER_S, rel=0.01)
    # in a stream: 4 layers of 1, 3 of 4/3 and 1 of 4 of the fastest device's layers
    stream = plan(output, where, "throughput")
    assert used(stream) == {A, B, C} and stream.copies >= 3
    assert stream.metrics.period_s == pytest.approx(4 * LAYER_S, rel=0.02)
    # 8 weights: 3, 3 and 2
    small = plan(output, where, "memory")
    assert used(small) == {A, B, C} and small.copies == 1
    held = sorted(m.weight_bytes // WEIGHT for m in small.memory[:3])
    assert held == [2, 3, 3]
    assert small.metrics.peak_bytes == max(m.peak_bytes for m in small.memory)
    assert small.metrics.peak_bytes < fastest.metrics.peak_bytes  # type: ignore[operator]
    # 10 W for 4 times as long are less than 300 W
    thrifty = plan(output, where, "energy")
    assert used(thrifty) == {C}
    assert thrifty.metrics.energy_j == pytest.approx(10 * 4 * 8 * LAYER_S, rel=0.01)
    for built in (fastest, stream, small, thrifty):
        assert built.decision is not None and built.notes[0].startswith("auto: ")
        assert plan_metrics(built) == built.metrics


@pytest.mark.parametrize("objective", ["memory", {"memory": 1.0, "latency": 1e-3}])
def test_weights_are_spread_where_a_run_is_shorter_than_a_submission(objective: object) -> None:
    x = vs.input("x", (64, 512))
    weights = [vs.weight(np.zeros((512, 512), np.float32), name=f"w{i}") for i in range(6)]
    branches = [vs.relu(vs.matmul(x, w, name=f"p{i}")) for i, w in enumerate(weights)]
    total = branches[0]
    for branch in branches[1:]:
        total = vs.add(total, branch)
    laptop = load_topology("preset:laptop")
    on = [(f"p{i}", "integrated" if i < 3 else "discrete") for i in range(6)]
    graph, _ = build_graph(total)
    by_hand = vs.plan_graph(graph, laptop, policy="priority", overrides=on)
    built = plan(total, laptop, objective)
    assert built.metrics.peak_bytes is not None and by_hand.metrics.peak_bytes is not None
    assert built.metrics.peak_bytes <= by_hand.metrics.peak_bytes
    assert {"integrated", "discrete"} <= used(built)


def test_idle_watts_can_make_the_faster_device_the_thriftier_one() -> None:
    output = layers(4)
    # the slow device: 10 W for 4 units of time, but the idle one takes 40 W all that while
    where = topology((4e9, 1e9), ((50.0, 40.0), (10.0, 0.0)))
    assert used(plan(output, where, "energy")) == {A}


def test_a_mix_lies_between() -> None:
    where, output = topology(UNEQUAL, THRIFTY), layers(8)
    assert used(plan(output, where, {"latency": 9, "energy": 1})) == {A}
    assert used(plan(output, where, "latency=1,energy=9")) == {C}
    mixed = plan(output, where, {"latency": 1, "memory": 1, "throughput": 1})
    decision = mixed.decision
    assert decision is not None
    assert decision.objective.name == "latency=1,throughput=1,memory=1"
    assert decision.chosen.metrics == mixed.metrics
    assert 1.0 <= decision.value <= decision.best_single_device_value


@pytest.mark.parametrize("word", sorted(WORDS))
@pytest.mark.parametrize("seed", range(8))
def test_no_plan_is_worse_than_the_best_device_alone(seed: int, word: str) -> None:
    rng = np.random.default_rng(seed)
    x = vs.input("x", (WIDTH, WIDTH))
    pool = [x]
    for i in range(int(rng.integers(4, 16))):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 5), len(pool)))] for _ in range(2))
        pool.append(layers(1, a, f"{i}.") if rng.random() < 0.6 else vs.add(a, b))
    output = vs.add(pool[-1], pool[-2])
    count = int(rng.integers(2, 4))
    watts = [(float(w), float(w * rng.uniform(0, 1))) for w in rng.uniform(10, 300, count)]
    speeds = [float(s) for s in 10 ** rng.uniform(8, 10, count)]
    link = Link(10 ** rng.uniform(8, 11), 10 ** rng.uniform(-6, -4))
    where = topology(speeds, watts, link)
    built = plan(output, where, word, copies="auto")
    value = built.metrics.values[word]
    for spec in where.devices[:-1]:
        graph, _ = build_graph(output)
        # a stream may have as many runs under way; what takes memory may have one
        copies = 3 if word == "throughput" else 1
        alone = vs.plan_graph(graph, where, overrides=[("*", spec.name)], copies=copies)
        assert value <= alone.metrics.values[word] * 1.01, (spec.name, built.notes)
    assert built.decision is not None
    if word != "latency":  # these lay out memory before they choose
        assert built.decision.chosen.metrics == built.metrics
        copies = sum(own.copies for own in (built, *built.replicas))
        assert built.decision.chosen.copies == copies


# -- copies and memory -----------------------------------------------------------------------------


def test_a_stream_has_as_many_copies_as_pay_and_fit() -> None:
    output = layers(6)
    roomy = plan(output, topology((1e9, 1e9)), "throughput")
    assert roomy.copies >= 2 and roomy.metrics.period_s < 0.6 * roomy.metrics.latency_s
    assert plan(output, topology((1e9, 1e9)), "throughput", copies=1).copies == 1
    # room for all weights on one device, and hardly for more
    tight = plan(output, topology((1e9, 1e9), memory=7 * WEIGHT), "throughput")
    for memory in tight.memory[:2]:
        assert memory.peak_bytes <= 7 * WEIGHT
    assert plan(output, topology((1e9,)), "throughput").copies >= 1


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_model_that_all_devices_have_no_room_for_is_planned(word: str) -> None:
    where = topology((1e9, 1e9), memory=5 * WEIGHT)
    built = plan(layers(16), where, word)
    assert CPU in used(built)
    assert all(memory.peak_bytes <= 5 * WEIGHT for memory in built.memory[:2])


def test_states_that_are_written_keep_runs_in_order() -> None:
    total = vs.state(np.zeros((WIDTH, WIDTH), np.float32), name="total")
    summed = vs.add(layers(4), total, name="summed")
    graph, _ = build_graph(summed, updates={total: summed})
    plan = check_plan(
        vs.plan_graph(graph, topology((1e9, 1e9)), policy="auto", objective="throughput")
    )
    assert plan.copies == 1 and plan.metrics.period_s == plan.metrics.latency_s


def test_what_is_placed_stays_whatever_the_objective() -> None:
    where = topology(UNEQUAL, THRIFTY)
    for word in WORDS:
        built = plan(layers(4), where, word, overrides=[("p1", B), ("w3", C)])
        assert built.device_of("p1") == B and built.device_of("p3") == C == built.device_of("w3")


def test_the_policy_priority_has_no_objective() -> None:
    graph, _ = build_graph(layers(1))
    with pytest.raises(PlanError, match=r'the policy priority.*got energy; try policy="auto"'):
        vs.plan_graph(graph, topology((1e9,)), policy="priority", objective="energy")
    with pytest.raises(PlanError, match="known objective, got 'speed'"):
        vs.plan_graph(graph, topology((1e9,)), policy="auto", objective="speed")
    with pytest.raises(PlanError, match=r"\[Scheduler\] expected no objective"):
        vs.Scheduler(["cpu"], "priority", objective="memory")
    plan = vs.plan_graph(graph, topology((1e9,)), policy="priority")
    assert plan.decision is None and plan.metrics.latency_s > 0


def test_a_scheduler_follows_its_objective() -> None:
    clock = vs.SimulatedClock()
    devices = [vs.SimulatedDevice(spec, clock) for spec in topology(UNEQUAL, THRIFTY).devices[:-1]]
    with vs.Scheduler(devices, objective={"energy": 1}) as sched:
        run = sched.compile(layers(8))
        assert used(run.plan) == {C}
        assert run.plan.decision is not None
        assert run.plan.decision.objective.name == "energy"
        found = run(x=np.ones((WIDTH, WIDTH), np.float32))
        assert np.allclose(found, 9.0)


# -- all objectives --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_table_has_those_first_that_nothing_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds = [float(s) for s in 10 ** rng.uniform(8.5, 9.5, 3)]
    watts = [(float(w), float(w / 10)) for w in rng.uniform(10, 300, 3)]
    x = vs.input("x", (WIDTH, WIDTH))
    graph, _ = build_graph(vs.add(layers(4, x, "a"), layers(3, x, "b")))
    found = compare_objectives(graph, topology(speeds, watts))
    front, rest = found.candidates[: found.front], found.candidates[found.front :]
    assert front and not any(dominates(a, b) for a in found.candidates for b in front)
    assert all(any(dominates(a, b) for a in front) for b in rest)
    assert set(found.picks) == set(WORDS)
    for word, number in found.picks.items():
        values = [c.metrics.values[word] for c in found.candidates]
        assert found.candidates[number].metrics.values[word] <= min(values) / 0.95
        # the same as a plan for that objective alone
        plan = vs.plan_graph(
            graph, topology(speeds, watts), policy="auto", objective=word, copies="auto"
        )
        assert plan.metrics.values[word] <= min(values) / 0.9
    data = found.as_dict()
    assert [c["dominated"] for c in data["candidates"]] == [False] * len(front) + [True] * len(rest)
    assert sorted(w for c in data["candidates"] for w in c["picked_by"]) == sorted(WORDS)


@pytest.mark.parametrize("copies", [0, -1, True, 1.5, "two"])
def test_copies_that_are_no_number_of_runs_are_refused(copies: object) -> None:
    graph, _ = build_graph(layers(2))
    message = 'expected "auto" or at least 1 copy, got'
    with pytest.raises(PlanError, match=message):
        compare_objectives(graph, topology((1e9,)), copies=copies)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=message):
        vs.plan_graph(graph, topology((1e9,)), copies=copies)  # type: ignore[arg-type]
