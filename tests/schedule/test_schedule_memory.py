"""Schedules for devices that cannot hold everything."""

from __future__ import annotations

import random

import pytest

from vksched.common.errors import PlanError
from vksched.schedule import Platform, Task, TaskGraph, policies, schedule
from vksched.schedule.model.partial_schedule import DeadEnd
from vksched.schedule.model.problem import make_problem
from vksched.schedule.policies import heft

EVERY = [*policies(), "single:p0"]


@pytest.mark.parametrize("links", ["parallel", "exclusive"])
@pytest.mark.parametrize("policy", EVERY)
def test_memory_is_retained_where_it_is_tight(policy: str, links: str) -> None:
    rng = random.Random(0)
    tasks = [
        Task(f"t{i}", {"p0": 1.0, "p1": rng.uniform(1, 9)}, rng.randint(0, 9)) for i in range(40)
    ]
    edges = [(f"t{i}", f"t{j}", 10) for j in range(1, 40) for i in {rng.randrange(j)}]
    whole = sum(task.memory_bytes for task in tasks)
    where = Platform(["p0", "p1"], memory_bytes={"p0": whole * 0.6, "p1": whole * 0.45})
    for objective in ("latency", "throughput"):
        schedule(TaskGraph(tasks, edges), where, policy, objective, 0.01, links=links).verify()


@pytest.mark.parametrize("policy", EVERY)
def test_a_task_with_one_device_keeps_its_memory(policy: str) -> None:
    # without a thought for b, both a's would fill p0
    tasks = TaskGraph(
        [*(Task(f"a{i}", {"p0": 1.0, "p1": 50.0}, 4) for i in range(3)), Task("b", {"p0": 1.0}, 4)],
        [(f"a{i}", "b", 0) for i in range(3)],
    )
    plan = schedule(tasks, Platform(["p0", "p1"], memory_bytes={"p0": 8}), policy).verify()
    assert plan.device["b"] == "p0"
    assert sum(d == "p1" for d in plan.device.values()) >= 2


@pytest.mark.parametrize("policy", EVERY)
def test_a_dead_end_is_left_by_placing_large_tasks_first(policy: str) -> None:
    # two devices seem best for the small tasks, and then none is empty for the large one
    small = [Task(f"s{i}", {"p0": 1.0, "p1": 1.0}, 1) for i in range(2)]
    large = Task("l", {"p0": 1.0, "p1": 1.0}, 9)
    tasks = TaskGraph([*small, large], [(task.name, "l", 0) for task in small])
    plan = schedule(tasks, Platform(["p0", "p1"], memory_bytes={"p0": 9, "p1": 9}), policy)
    assert plan.verify().device["s0"] == plan.device["s1"] != plan.device["l"]


def test_heft_alone_would_end_there() -> None:
    tasks = [Task(n, {"p0": 1.0, "p1": 1.0}, size) for n, size in (("a", 1), ("b", 1), ("l", 9))]
    where = Platform(["p0", "p1"], memory_bytes={"p0": 9, "p1": 9})
    problem = make_problem(TaskGraph(tasks, [("a", "l", 0), ("b", "l", 0)]), where)
    with pytest.raises(DeadEnd):
        heft(problem)


def test_what_fits_nowhere_is_reported() -> None:
    with pytest.raises(PlanError, match="with 9 bytes of memory for 'x'"):
        schedule(TaskGraph([Task("x", {"p": 1.0}, 9)]), Platform(["p"], memory_bytes={"p": 8}))
    three = TaskGraph([Task(n, {"p": 1.0, "q": 1.0}, 5) for n in "abc"])
    with pytest.raises(PlanError, match="found no placement .* try more memory_bytes"):
        schedule(three, Platform(["p", "q"], memory_bytes={"p": 8, "q": 8}))
    pinned = TaskGraph([Task(n, {"p": 1.0}, 5) for n in "ab"])
    with pytest.raises(PlanError, match="at most 8 bytes of tasks that run on 'p' only, got 10"):
        schedule(pinned, Platform(["p"], memory_bytes={"p": 8}))
