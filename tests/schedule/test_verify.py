"""The check finds each kind of mistake that is planted into a good schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vksched.common.errors import PlanError
from vksched.schedule import Link, Platform, Schedule, Task, TaskGraph, Transfer, schedule

# p  |a  |   |c |        a crosses to b: 2 s
# q      ..|b  |
TASKS = TaskGraph(
    [Task("a", {"p": 2.0}), Task("b", {"q": 2.0}, 5), Task("c", {"p": 1.0, "q": 9.0}, 5)],
    [("a", "b", 4), ("a", "c", 4)],
)
WHERE = Platform(["p", "q"], default_link=Link(bandwidth=2.0), memory_bytes={"q": 5})


@pytest.fixture
def good() -> Schedule:
    return schedule(TASKS, WHERE, "heft").verify()


def test_the_good_one_is_what_the_drawing_says(good: Schedule) -> None:
    assert good.start_s == {"a": 0.0, "b": 4.0, "c": 2.0}
    assert good.makespan_s == 6.0


def times(good: Schedule, **start: float) -> dict[str, Any]:
    begun = {**good.start_s, **start}
    took = {n: good.finish_s[n] - good.start_s[n] for n in begun}
    return {"start_s": begun, "finish_s": {n: begun[n] + took[n] for n in begun}}


def test_planted_mistakes_are_found(good: Schedule) -> None:
    (transfer,) = good.transfers
    late, early = replace(transfer, finish_s=3.0), replace(transfer, start_s=1.0)
    home = Transfer("a", "c", "p", "p", 4, 2.0, 2.0)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"device": {"a": "q", "b": "q", "c": "p"}}, "a device that can run 'a'"),
        ({"device": {"a": "p", "b": "q"}}, "times for every task"),
        ({"finish_s": {**good.finish_s, "a": 1.0}}, "2.0 s of 'a' on p"),
        (times(good, a=-1.0), "'a' not before the start"),
        (times(good, c=1.0), "one task at a time on p"),
        (times(good, b=3.0), "'b' after its data of 'a'"),
        ({"transfers": ()}, "a transfer from 'a' to 'b'"),
        ({"transfers": (late,)}, "2.0 s for 4.0 bytes"),
        ({"transfers": (early,)}, "a transfer after 'a'"),
        ({"transfers": (replace(transfer, size_bytes=3.0),)}, "4.0 bytes from p to q"),
        ({"transfers": (transfer, transfer)}, "one transfer for each edge"),
        ({"transfers": (transfer, home)}, "no transfer from 'a' to 'c', which share p"),
        ({"makespan_s": 5.0}, "a makespan of 6.0"),
    ]
    for changed, reported in mistakes:
        with pytest.raises(PlanError, match=reported):
            replace(good, **changed).verify()


def test_memory_that_is_too_small_is_found(good: Schedule) -> None:
    on_q = replace(good, device={"a": "p", "b": "q", "c": "q"}, **times(good, c=6.0))
    finish = {**on_q.finish_s, "c": 15.0}
    moved = replace(on_q, finish_s=finish, makespan_s=15.0)
    with pytest.raises(PlanError, match="at most 5 bytes on q, got 10"):
        moved.verify()


def test_two_transfers_at_once_are_found_on_exclusive_links() -> None:
    tasks = TaskGraph(
        [Task("a", {"p": 1.0}), *(Task(n, {"q": 1.0}) for n in "bc")],
        [("a", "b", 4), ("a", "c", 4)],
    )
    plan = schedule(tasks, WHERE, "heft").verify()
    assert [t.start_s for t in plan.transfers] == [1.0, 1.0]
    with pytest.raises(PlanError, match="one transfer at a time between p and q"):
        replace(plan, links="exclusive").verify()
    waits = schedule(tasks, WHERE, "heft", links="exclusive").verify()
    assert [t.start_s for t in waits.transfers] == [1.0, 3.0]
    assert waits.makespan_s == 6.0
