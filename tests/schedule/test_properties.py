"""What holds for every policy on every instance: promises, bounds, repeatability."""

from __future__ import annotations

import pytest
from drawn_tasks import Instance, drawn, instances
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from vksched.schedule import policies, schedule
from vksched.schedule.memory_aware import respecting_memory
from vksched.schedule.model.problem import make_problem
from vksched.schedule.model.simulate_tasks import simulate, simulate_events
from vksched.schedule.schedule import find_policy

BUDGET_S = 0.004


@settings(max_examples=examples(150), deadline=None)
@given(
    instances(),
    st.sampled_from([*policies(), "single:p0"]),
    st.sampled_from(["latency", "throughput"]),
    st.sampled_from(["parallel", "exclusive"]),
)
def test_every_schedule_keeps_its_promises(
    instance: Instance, policy: str, objective: str, links: str
) -> None:
    plan = schedule(*instance, policy, objective, BUDGET_S, links=links).verify()
    assert plan.value_s >= plan.lower_bound_s
    assert plan.makespan_s >= plan.period_s * (1 - 1e-12) or links == "exclusive"
    assert schedule(*instance, policy, objective, BUDGET_S, links=links) == plan


@settings(max_examples=examples(100), deadline=None)
@given(instances(), st.sampled_from([*policies()[1:], "single:p0"]))
def test_both_simulators_agree_where_transfers_do_not_wait(instance: Instance, policy: str) -> None:
    problem = make_problem(*instance)
    placed = respecting_memory(problem, find_policy(problem, policy))
    simple, events = simulate(problem, placed), simulate_events(problem, placed)
    assert simple.start == pytest.approx(events.start)
    assert simple.finish == pytest.approx(events.finish)


@settings(max_examples=examples(60), deadline=None)
@given(instances(), st.sampled_from(["parallel", "exclusive"]))
def test_auto_is_never_worse_than_one_device(instance: Instance, links: str) -> None:
    tasks, where = instance
    auto = schedule(tasks, where, budget_s=0.0, links=links)
    for device in where.devices:
        if all(device in task.cost_s for task in tasks):
            alone = schedule(tasks, where, f"single:{device}", links=links)
            assert auto.makespan_s <= alone.makespan_s * (1 + 1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(instances(), st.sampled_from(["latency", "throughput"]))
def test_a_budget_never_makes_auto_worse(instance: Instance, objective: str) -> None:
    none = schedule(*instance, objective=objective, budget_s=0.0)
    some = schedule(*instance, objective=objective, budget_s=BUDGET_S)
    assert some.value_s <= none.value_s * (1 + 1e-9)


@pytest.mark.parametrize("links", ["parallel", "exclusive"])
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_the_same_seed_gives_the_same_plan(objective: str, links: str) -> None:
    tasks, where = drawn(7, 40, 4)
    first, again, other = (
        schedule(tasks, where, "auto", objective, 0.02, seed, links) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.value_s == pytest.approx(other.value_s, rel=0.2)


def test_exclusive_links_make_transfers_wait() -> None:
    tasks, where = drawn(3, 30, 3)
    free = schedule(tasks, where, "heft")
    waits = schedule(tasks, where, "heft", links="exclusive").verify()
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for t in waits.transfers:
        key = where.channel(t.source, t.target)
        spans.setdefault(key, []).append((t.start_s, t.finish_s))
    assert sum(map(len, spans.values())) > 3
    for channel in spans.values():
        channel.sort()
        for (_, end), (start, _) in zip(channel, channel[1:], strict=False):
            assert start >= end - 1e-9
    assert waits.makespan_s >= free.lower_bound_s
