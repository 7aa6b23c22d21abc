"""Values are checked when they are made, and errors name what is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vksched.common.errors import GraphError, PlanError
from vksched.schedule import Link, Platform, Task, TaskGraph, policies, schedule
from vksched.topology.power import DevicePower

A, B, C = Task("a", {"p": 1.0}), Task("b", {"p": 2.0}), Task("c", {"p": 3.0})


def test_producers_come_first_in_the_order() -> None:
    graph = TaskGraph([C, B, A], [("a", "b", 1), ("b", "c", 1)])
    assert [graph.tasks[i].name for i in graph.order] == ["a", "b", "c"]
    assert len(graph) == 3


def test_edges_named_twice_are_one_transfer() -> None:
    graph = TaskGraph([A, B], [("a", "b", 3), ("a", "b", 4), ("a", "b")])
    assert graph.arcs == {(0, 1): 7}


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("a", "x", 1)], "edges between tasks that are there, got 'x'"),
        ([("a", "b", -1)], "0 or more bytes"),
        ([("a", "b", float("nan"))], "0 or more bytes"),
        ([("a", "b", float("inf"))], "0 or more bytes"),
        ([("a", "b", 1, 5)], "producer, consumer and maybe bytes, got"),
        ([("a",)], "producer, consumer and maybe bytes, got"),
        ([("a", "a", 1)], "no circle, got a -> a"),
        ([("a", "b", 1), ("b", "c", 1), ("c", "b", 1)], "no circle, got (b -> c -> b|c -> b -> c)"),
    ],
)
def test_edges_that_are_none_are_refused(edges: list[tuple[str, str, float]], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        TaskGraph([A, B, C], edges)


def test_tasks_that_are_none_are_refused() -> None:
    with pytest.raises(GraphError, match="a name once, got 'a' twice"):
        TaskGraph([A, B, A])
    for cost in (-1.0, float("nan"), float("inf")):
        with pytest.raises(GraphError, match="0 or more seconds for 'x' on 'p'"):
            TaskGraph([Task("x", {"p": cost})])
    with pytest.raises(GraphError, match="memory_bytes of 0 or more"):
        Task("x", {"p": 1.0}, memory_bytes=-1)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({("p", "x"): Link()}, "links between p, q"),
        ({("p", "p"): Link()}, "between two devices"),
        ({("p", "q"): Link(bandwidth=0.0)}, "speed above 0"),
        ({("p", "q"): Link(bandwidth=1e-320)}, "speed above 0"),
        ({("p", "q"): Link(latency_s=-1.0)}, "latency of 0 or more"),
    ],
)
def test_links_that_are_none_are_refused(links: dict[tuple[str, str], Link], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Platform(["p", "q"], links)


def test_devices_that_are_none_are_refused() -> None:
    for names in ([], ["p", "p"]):
        with pytest.raises(PlanError, match="devices with a name each"):
            Platform(names)
    with pytest.raises(PlanError, match="bytes of memory for p, got 1 for 'x'"):
        Platform(["p"], memory_bytes={"x": 1})


WRONG = [None, "1", [1.0], float("nan"), -1.0, 1e308, 10**400]
"""No amount of anything: of the wrong type, or so large that sums of it are no numbers."""


@pytest.mark.parametrize("wrong", WRONG)
def test_amounts_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(GraphError, match=r"^\[task\] expected 0 or more seconds for 'x' on 'p'"):
        TaskGraph([Task("x", {"p": wrong})])
    with pytest.raises(GraphError, match=r"^\[task\] expected memory_bytes of 0 or more for 'x'"):
        Task("x", {"p": 1.0}, wrong)
    with pytest.raises(GraphError, match=r"^\[tasks\] expected 0 or more bytes"):
        TaskGraph([A, B], [("a", "b", wrong)])
    with pytest.raises(PlanError, match=r"^\[platform\] expected a link .* latency of 0 or more"):
        Platform(["p", "q"], {("p", "q"): Link(latency_s=wrong)})
    with pytest.raises(PlanError, match=r"^\[platform\] expected busy watts"):
        Platform(["p"], watts={"p": DevicePower(wrong)})
    if wrong is not None:  # then auto takes its own
        with pytest.raises(PlanError, match=r"^\[schedule\] expected a budget of 0 or more"):
            schedule(TaskGraph([A]), Platform(["p"]), budget_s=wrong)


@pytest.mark.parametrize("wrong", [None, "1", [1.0], float("nan"), -1.0])
def test_memory_and_speeds_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"^\[platform\] expected 0 or more bytes of memory"):
        Platform(["p"], memory_bytes={"p": wrong})
    for base in (None, Link(wrong)):
        with pytest.raises(PlanError, match=r"^\[platform\] expected a link with a speed above 0"):
            Platform(["p", "q"], {("p", "q"): Link(wrong)}, default_link=base)
    if not isinstance(wrong, float | str | None):
        with pytest.raises(PlanError, match=r"^\[link\] expected bytes a second as bandwidth"):
            Link(bandwidth=wrong)


def test_values_of_wrong_types_are_refused() -> None:
    with pytest.raises(PlanError, match="bytes a second as bandwidth, got 'fast'"):
        Link(bandwidth="fast")  # type: ignore[arg-type]
    wrong: Any
    for wrong in (None, 1.0, ["p"]):
        with pytest.raises(GraphError, match="a mapping of devices to seconds for 'x'"):
            TaskGraph([Task("x", wrong)])
        with pytest.raises(GraphError, match="producer, consumer and maybe bytes, got"):
            TaskGraph([A, B], [wrong])
        with pytest.raises(PlanError, match="a link with a speed above 0"):
            Platform(["p", "q"], {("p", "q"): wrong})
        with pytest.raises(PlanError, match="expected links between p, q, got"):
            Platform(["p", "q"], {"p": Link()})  # type: ignore[dict-item]
        with pytest.raises(PlanError, match="expected busy watts"):
            Platform(["p"], watts={"p": wrong})
        if wrong is not None:
            with pytest.raises(PlanError, match="expected mappings as links, memory_bytes and"):
                Platform(["p"], memory_bytes=wrong)


def test_the_largest_amounts_make_a_schedule() -> None:
    tasks = TaskGraph(
        [Task(name, {"p": 1e60, "q": np.float32(1.0)}, int(1e60)) for name in "abc"],
        [("a", "b", 1e60), ("a", "c", np.int64(3))],
    )
    link, watts = Link(1e-60, 1e60), {"p": DevicePower(1e60), "q": DevicePower(1e60, 1e60)}
    where = Platform(["p", "q"], default_link=link, memory_bytes={"q": 2e60}, watts=watts)
    for name in policies():
        built = schedule(tasks, where, name).verify()
        assert all(map(math.isfinite, built.metrics.values.values()))


def test_a_link_serves_both_ways_unless_the_way_back_has_its_own() -> None:
    fast, slow, base = Link(bandwidth=2.0), Link(bandwidth=1.0), Link(bandwidth=9.0)
    one = Platform(["p", "q", "r"], {("p", "q"): fast}, default_link=base)
    assert (one.link("p", "q"), one.link("q", "p"), one.link("p", "r")) == (fast, fast, base)
    assert one.channel("q", "p") == one.channel("p", "q") == ("p", "q")
    two = Platform(["p", "q"], {("q", "p"): slow, ("p", "q"): fast})
    assert (two.link("p", "q"), two.link("q", "p")) == (fast, slow)
    assert two.channel("q", "p") != two.channel("p", "q")
    there = TaskGraph([Task("a", {"p": 1.0}), Task("b", {"q": 1.0})], [("a", "b", 4)])
    back = TaskGraph([Task("a", {"q": 1.0}), Task("b", {"p": 1.0})], [("a", "b", 4)])
    assert schedule(there, two).makespan_s == pytest.approx(4.0)
    assert schedule(back, two).makespan_s == pytest.approx(6.0)


def test_bandwidth_is_another_word_for_bytes_per_s() -> None:
    assert Link(bandwidth=5.0) == Link(5.0) == Link(bytes_per_s=5.0)
    assert Link(bandwidth=float("inf"), latency_s=2.0).seconds(1e12) == 2.0


def test_the_empty_graph_takes_no_time() -> None:
    plan = schedule(TaskGraph([]), Platform(["p"])).verify()
    assert (plan.makespan_s, plan.lower_bound_s, plan.ratio) == (0.0, 0.0, 1.0)


def test_costs_of_other_devices_are_left_out() -> None:
    # "what if q were not here" needs no other tasks
    tasks = TaskGraph([Task("a", {"p": 2.0, "q": 1.0})])
    assert schedule(tasks, Platform(["p", "q"])).makespan_s == 1.0
    assert schedule(tasks, Platform(["p"])).makespan_s == 2.0
