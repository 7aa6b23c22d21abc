"""Many tasks and many devices: the cheap policies end, and keep their promises."""

from __future__ import annotations

import random

import pytest
from selection import spread

from vksched.schedule import Link, Platform, Task, TaskGraph, schedule


def wide(tasks: int, devices: int, kinds: int) -> tuple[TaskGraph, Platform]:
    rng = random.Random(0)
    names = [f"p{i}" for i in range(devices)]
    costs = [{d: rng.uniform(0.5, 5.0) for d in names} for _ in range(kinds)]
    work = [Task(f"t{i}", rng.choice(costs)) for i in range(tasks)]
    edges = [
        (f"t{a}", f"t{b}", 1000)
        for b in range(1, tasks)
        for a in {rng.randrange(max(0, b - 300), b) for _ in range(2)}
    ]
    return TaskGraph(work, edges), Platform(names, default_link=Link(bandwidth=1e4))


@pytest.mark.each_value
@pytest.mark.parametrize("policy", ["priority", "fcp", "flb", "heft", "min-min", "auto"])
@pytest.mark.parametrize(("tasks", "devices"), [(20_000, 16), (600, 1000)])
def test_many_tasks_and_devices(policy: str, tasks: int, devices: int) -> None:
    plan = schedule(*wide(tasks, devices, 20), policy, budget_s=0.02).verify()
    assert plan.ratio >= 1.0


@pytest.mark.parametrize(
    "policy", spread(["priority", "fcp", "flb", "heft", "peft", "min-min", "auto"], 0, 3)
)
def test_a_hundred_thousand_tasks(policy: str) -> None:
    schedule(*wide(100_000, 16, 100), policy).verify()
