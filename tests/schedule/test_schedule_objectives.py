"""Objectives of schedules: by hand, by exhaustive search, and words that are refused."""

from __future__ import annotations

import itertools
import json

import pytest
from drawn_tasks import Instance, drawn, instances
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from vksched.common.errors import PlanError
from vksched.schedule import (
    DevicePower,
    Link,
    Metrics,
    Objective,
    Platform,
    Task,
    TaskGraph,
    policies,
    schedule,
)
from vksched.schedule.model.objectives import LATENCY, WORDS, least_of

POWER = {"fast": DevicePower(100.0, 10.0), "slow": DevicePower(20.0, 5.0)}
"""The fast device does a second of the slow one in half of it, for 50 instead of 20 joules."""


def pair(bytes_each: int = 0) -> Instance:
    """Two tasks that know nothing of each other, and two devices."""
    work = [Task(name, {"fast": 1.0, "slow": 2.0}, bytes_each) for name in "ab"]
    return TaskGraph(work), Platform(["fast", "slow"], default_link=Link(1e9), watts=POWER)


def test_each_objective_takes_another_schedule() -> None:
    tasks, where = pair(10)
    # both on fast: 2 s, 100 * 2 + 5 * 2 = 210 J; both on slow: 4 s, 20 * 4 + 10 * 4 = 120 J;
    # one each: 2 s, 100 + 10 + 20 * 2 = 150 J
    either = {"latency": 2.0, "throughput": 2.0, "memory": 10.0, "energy": 120.0}
    for word, value in either.items():
        plan = schedule(tasks, where, objective=word).verify()
        assert plan.value == pytest.approx(value), word
        assert plan.objective == word and plan.value == plan.metrics.values[word]
    assert set(schedule(tasks, where, objective="energy").device.values()) == {"slow"}
    assert set(schedule(tasks, where, objective="memory").device.values()) == {"fast", "slow"}
    mixed = schedule(tasks, where, objective={"latency": 1, "energy": 1}).verify()
    # 2 s of 2 s and 150 J of 120 J, or 4 s of 2 s and 120 J of 120 J
    assert mixed.metrics == Metrics(2.0, 2.0, 10.0, 150.0)
    assert mixed.value == pytest.approx((1 + 150 / 120) / 2)
    assert mixed.objective == "latency=1,energy=1" and mixed.lower_bound == 0.0
    thrifty = schedule(tasks, where, objective={"latency": 1, "energy": 9})
    assert thrifty.metrics.energy_j == pytest.approx(120.0)


def test_the_numbers_are_in_the_plain_data() -> None:
    tasks, where = pair(10)
    found = json.loads(json.dumps(schedule(tasks, where, "single:fast").as_dict()))
    assert found["metrics"] == {
        "latency_s": 2.0,
        "period_s": 2.0,
        "peak_bytes": 20.0,
        "energy_j": 210.0,
    }
    for watts in ({}, {"fast": POWER["fast"]}):  # idle watts of the other one would be missing
        some = Platform(["fast", "slow"], watts=watts)
        plan = schedule(tasks, some, "single:fast")
        assert plan.metrics.energy_j is None and "energy" not in plan.metrics.values
        assert plan.as_dict()["metrics"]["energy_j"] is None


def best_by_search(tasks: TaskGraph, where: Platform, word: str) -> float:
    """The least value over all devices of all tasks; of joules for tasks without edges."""
    least = float("inf")
    candidate_devices = [list(task.cost_s) for task in tasks]
    for devices in itertools.product(*candidate_devices):
        held, load = dict.fromkeys(where.devices, 0.0), dict.fromkeys(where.devices, 0.0)
        for task, device in zip(tasks, devices, strict=True):
            held[device] += task.memory_bytes
            load[device] += task.cost_s[device]
        joules = sum(
            where.watts[d].idle * max(load.values()) + where.watts[d].more * load[d]
            for d in where.devices
        )
        least = min(least, max(held.values()) if word == "memory" else joules)
    return least


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("word", ["memory", "energy"])
def test_auto_finds_what_a_search_of_all_finds(seed: int, word: str) -> None:
    drawn_tasks, bare = drawn(seed, 7, 2 + seed % 2, missing=0.1)
    sized = [Task(t.name, t.cost_s, (3 * i) % 7 + 1) for i, t in enumerate(drawn_tasks)]
    watts = {d: DevicePower(30.0 + 25 * i, 4.0 * i) for i, d in enumerate(bare.devices)}
    tasks, where = TaskGraph(sized), Platform(bare.devices, watts=watts)
    plan = schedule(tasks, where, objective=word, budget_s=0.3).verify()
    assert plan.value == pytest.approx(best_by_search(tasks, where, word))


MIXES = st.dictionaries(
    st.sampled_from(sorted(WORDS)), st.sampled_from([0.5, 1.0, 3.0]), min_size=1
)


@settings(max_examples=examples(60), deadline=None)
@given(instances(), MIXES, st.integers(0, 3))
def test_no_schedule_is_under_its_bound_or_worse_than_a_single_device(
    instance: Instance, mix: dict[str, float], seed: int
) -> None:
    tasks, bare = instance
    watts = {d: DevicePower(10.0 + 30 * i, 3.0 * i) for i, d in enumerate(bare.devices)}
    where = Platform(
        bare.devices,
        bare.links,
        memory_bytes=bare.memory_bytes,
        default_link=bare.default_link,
        watts=watts,
    )
    plan = schedule(tasks, where, objective=mix, seed=seed, budget_s=0.01).verify()
    assert plan.value >= plan.lower_bound * (1 - 1e-9)
    goal = Objective.of(mix)
    if len(tasks):
        alone = schedule(tasks, where, f"single:{where.devices[0]}", mix)
        if goal.word:
            everywhere = all(set(task.cost_s) >= set(where.devices) for task in tasks)
            assert not everywhere or plan.value <= alone.value * (1 + 1e-9)
    again = schedule(tasks, where, objective=mix, seed=seed, budget_s=0.01)
    assert again.device == plan.device and again.metrics == plan.metrics


@pytest.mark.parametrize("policy", policies())
def test_every_policy_has_all_metrics(policy: str) -> None:
    tasks, where = pair(10)
    plan = schedule(tasks, where, policy, {"latency": 2, "memory": 1}).verify()
    assert set(plan.metrics.values) == set(WORDS) and plan.value >= 1.0


def test_an_objective_is_a_word_weights_or_text() -> None:
    assert Objective.of("latency") == Objective.of({"latency": 3}) == LATENCY
    mix = Objective.of({"energy": 0.5, "latency": 1, "memory": 0})
    assert mix.name == "latency=1,energy=0.5" and Objective.of(mix.name) == mix
    assert Objective.of(mix) is mix and mix.asks("energy") and not mix.asks("memory")
    one, other = {"latency": 2.0, "energy": 8.0}, {"latency": 4.0, "energy": 4.0}
    least = least_of([one, other])
    assert least == {"latency": 2.0, "energy": 4.0}
    assert mix.value(one, least) == pytest.approx((1 + 0.5 * 2) / 1.5)
    # what is 0 everywhere says nothing
    assert Objective.of({"latency": 1, "memory": 1}).value(
        {"latency": 2.0, "memory": 0.0}, least_of([{"latency": 2.0, "memory": 0.0}])
    ) == pytest.approx(0.5)


@pytest.mark.parametrize("weight", [1 / 3, 0.1, 123456789.0, 1e-9, 2.0])
def test_the_name_of_a_mix_stands_for_exactly_that_mix(weight: float) -> None:
    mix = Objective.of({"latency": weight, "energy": 1})
    assert Objective.of(mix.name) == mix


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"objective": "speed"}, "known objective, got 'speed'; try one of latency, throughput"),
        ({"objective": {"latency": -1}}, "weights from 0 to 1e.100, got {'latency': -1}"),
        ({"objective": {"latency": 0}}, "a weight above 0"),
        ({"objective": {}}, "a weight above 0"),
        ({"objective": "latency=fast"}, "weights from 0 to"),
        ({"objective": {"latency": 1e308, "energy": 1e308}}, "weights from 0 to"),
        ({"objective": {"latency": 10**400, "energy": 1}}, "weights from 0 to"),
        ({"objective": "latency=1,energy=2,latency=3"}, "got 'latency' twice"),
        ({"objective": 3}, "or a mapping of them to weights, got 3"),
        ({"objective": "energy"}, "watts of every device for the objective energy, got none of p0"),
    ],
)
def test_what_is_no_objective_is_refused(words: dict[str, object], message: str) -> None:
    tasks = TaskGraph([Task("a", {"p0": 1.0})])
    with pytest.raises(PlanError, match=message):
        schedule(tasks, Platform(["p0"]), **words)  # type: ignore[arg-type]


def test_watts_are_checked() -> None:
    with pytest.raises(PlanError, match="at most as many idle ones"):
        Platform(["p0"], watts={"p0": DevicePower(5.0, 10.0)})
    with pytest.raises(PlanError, match="for 'p1'"):
        Platform(["p0"], watts={"p1": DevicePower(5.0)})
