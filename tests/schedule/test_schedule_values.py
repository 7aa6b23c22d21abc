"""Values are checked when they are made, and errors name what is wrong."""

from __future__ import annotations

import pytest

from vksched.errors import GraphError, PlanError
from vksched.schedule import Link, Task, TaskGraph, Topology, schedule

A, B, C = Task("a", {"p": 1.0}), Task("b", {"p": 2.0}), Task("c", {"p": 3.0})


def test_producers_come_first_in_the_order() -> None:
    graph = TaskGraph([C, B, A], [("a", "b", 1), ("b", "c", 1)])
    assert [graph.tasks[i].name for i in graph.order] == ["a", "b", "c"]
    assert len(graph) == 3


def test_edges_given_twice_are_one_transfer() -> None:
    graph = TaskGraph([A, B], [("a", "b", 3), ("a", "b", 4), ("a", "b")])
    assert graph.arcs == {(0, 1): 7}


@pytest.mark.parametrize(
    ("edges", "told"),
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
def test_edges_that_are_none_are_refused(edges: list[tuple[str, str, float]], told: str) -> None:
    with pytest.raises(GraphError, match=told):
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
    ("links", "told"),
    [
        ({("p", "x"): Link()}, "links between p, q"),
        ({("p", "p"): Link()}, "between two devices"),
        ({("p", "q"): Link(bandwidth=0.0)}, "speed above 0"),
        ({("p", "q"): Link(bandwidth=1e-320)}, "speed above 0"),
        ({("p", "q"): Link(latency_s=-1.0)}, "latency of 0 or more"),
    ],
)
def test_links_that_are_none_are_refused(links: dict[tuple[str, str], Link], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        Topology(["p", "q"], links)


def test_devices_that_are_none_are_refused() -> None:
    for names in ([], ["p", "p"]):
        with pytest.raises(PlanError, match="devices with a name each"):
            Topology(names)
    with pytest.raises(PlanError, match="bytes of memory for p, got 1 for 'x'"):
        Topology(["p"], memory_bytes={"x": 1})


def test_a_link_serves_both_ways_unless_the_way_back_has_its_own() -> None:
    fast, slow, base = Link(bandwidth=2.0), Link(bandwidth=1.0), Link(bandwidth=9.0)
    one = Topology(["p", "q", "r"], {("p", "q"): fast}, default_link=base)
    assert (one.link("p", "q"), one.link("q", "p"), one.link("p", "r")) == (fast, fast, base)
    assert one.channel("q", "p") == one.channel("p", "q") == ("p", "q")
    two = Topology(["p", "q"], {("q", "p"): slow, ("p", "q"): fast})
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
    plan = schedule(TaskGraph([]), Topology(["p"])).verify()
    assert (plan.makespan_s, plan.lower_bound_s, plan.ratio) == (0.0, 0.0, 1.0)


def test_costs_of_other_devices_are_left_out() -> None:
    # "what if q were not here" needs no other tasks
    tasks = TaskGraph([Task("a", {"p": 2.0, "q": 1.0})])
    assert schedule(tasks, Topology(["p", "q"])).makespan_s == 1.0
    assert schedule(tasks, Topology(["p"])).makespan_s == 2.0
