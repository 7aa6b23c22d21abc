"""The door: names of policies, words that are unknown, and the example of the docs."""

from __future__ import annotations

import json

import pytest

from vksched.common.errors import PlanError
from vksched.schedule import Link, Platform, Task, TaskGraph, policies, schedule

TASKS = TaskGraph(
    [Task("a", {"p0": 1.0, "p1": 2.5}), Task("b", {"p1": 3.0}), Task("c", {"p0": 2.0, "p1": 2.0})],
    edges=[("a", "b", 4_000_000), ("a", "c", 10)],
)
WHERE = Platform(["p0", "p1"], {("p0", "p1"): Link(bandwidth=8e6, latency_s=0.25)})
EVERY = [*policies(), "single:p0", "single:p1"]


@pytest.mark.parametrize("links", ["parallel", "exclusive"])
@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("policy", EVERY)
def test_every_policy_keeps_all_promises(policy: str, objective: str, links: str) -> None:
    plan = schedule(TASKS, WHERE, policy, objective, links=links).verify()
    assert plan.device["b"] == "p1"
    assert json.loads(json.dumps(plan.as_dict()))["makespan_s"] == plan.makespan_s


def test_auto_finds_the_best_of_three_tasks() -> None:
    # a on p0 until 1.0, its data is on p1 at 1.75: b from 1.75 to 4.75; c beside it on p0
    plan = schedule(TASKS, WHERE)
    assert plan.makespan_s == pytest.approx(4.75)
    assert plan.lower_bound_s == pytest.approx(4.75)
    (transfer,) = plan.transfers
    assert (transfer.producer, transfer.consumer) == ("a", "b")
    assert (transfer.start_s, transfer.finish_s) == pytest.approx((1.0, 1.75))


def test_a_schedule_tells_how_far_it_is_above_its_bound() -> None:
    plan = schedule(TaskGraph([Task("x", {"p0": 0.25, "p1": 0.5})]), WHERE, "single:p1")
    assert (plan.makespan_s, plan.lower_bound_s, plan.ratio) == pytest.approx((0.5, 0.25, 2.0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"policy": "hefft"}, "try heft"),
        ({"policy": None}, "known policy, got None; try auto"),
        ({"policy": "single:p7"}, "known device, got 'p7'; try p"),
        ({"objective": "speed"}, "known objective"),
        ({"links": "shared"}, "parallel or exclusive"),
        ({"budget_s": -1.0}, "budget of 0 or more"),
        ({"budget_s": float("nan")}, "budget of 0 or more"),
        ({"budget_s": float("inf")}, "budget of 0 or more"),
    ],
)
def test_unknown_words_are_refused(words: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        schedule(TASKS, WHERE, **words)  # type: ignore[arg-type]


def test_a_task_that_can_run_nowhere_is_named() -> None:
    with pytest.raises(PlanError, match="can run 'x', got costs for gpu and the devices p0, p1"):
        schedule(TaskGraph([Task("x", {"gpu": 1.0})]), WHERE)
