"""Small instances against an exhaustive search: how far each policy is from the optimum."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from drawn_tasks import drawn, optimum

from vksched.schedule import policies, schedule

INSTANCES = [
    drawn(seed, rng.randint(4, 9), rng.randint(2, 3), missing=rng.choice([0.0, 0.3]))
    for seed in range(60)
    for rng in [random.Random(seed)]
]


@pytest.fixture(scope="module")
def best() -> list[float]:
    return [optimum(tasks, where) for tasks, where in INSTANCES]


def test_auto_is_optimal_on_most_instances_of_up_to_nine_tasks(best: list[float]) -> None:
    ratio = [
        schedule(tasks, where).makespan_s / least
        for (tasks, where), least in zip(INSTANCES, best, strict=True)
    ]
    optimal = sum(found <= 1 + 1e-9 for found in ratio)
    print(f"\nauto: optimal on {optimal} of {len(ratio)}, mean {fmean(ratio):.4f} of the optimum")
    assert min(ratio) > 1 - 1e-9
    assert fmean(ratio) <= 1.05
    assert optimal >= 0.8 * len(ratio)


@pytest.mark.parametrize("policy", [name for name in policies() if name != "auto"])
def test_no_policy_is_under_the_optimum(policy: str, best: list[float]) -> None:
    ratio = [
        schedule(tasks, where, policy).makespan_s / least
        for (tasks, where), least in zip(INSTANCES, best, strict=True)
    ]
    print(f"\n{policy}: mean {fmean(ratio):.3f} of the optimum, at most {max(ratio):.2f}")
    assert min(ratio) > 1 - 1e-9


def test_the_search_knows_two_optima_by_hand() -> None:
    tasks, where = drawn(0, 1, 2)
    assert optimum(tasks, where) == min(tasks.tasks[0].cost_s.values())
