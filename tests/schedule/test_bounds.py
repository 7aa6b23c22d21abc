"""Lower bounds: by hand, and against each other."""

from __future__ import annotations

import sys

import pytest
from drawn_tasks import Instance, drawn, instances, optimum
from hypothesis import given, settings
from selection import examples

from vksched.schedule import Link, Platform, Task, TaskGraph, schedule
from vksched.schedule.model.lower_bounds import HINT, WEIGHTS, Bounds, area_bound, find_bounds
from vksched.schedule.model.problem import make_problem


def bounds_of(tasks: TaskGraph, where: Platform, links: str = "parallel") -> Bounds:
    return find_bounds(make_problem(tasks, where, links))


def test_the_area_of_equal_tasks_is_shared_by_speed() -> None:
    # speeds 1 and 1/3: three of four tasks' time on the fast one
    tasks = TaskGraph([Task(f"t{i}", {"p": 1.0, "q": 3.0}) for i in range(8)])
    found = bounds_of(tasks, Platform(["p", "q"]))
    assert found.area_s == pytest.approx(6.0)
    assert found.path_s == pytest.approx(1.0)
    assert found.by == "linear program"


def test_the_path_counts_transfers_that_cannot_be_avoided() -> None:
    tasks = TaskGraph([Task("a", {"p": 1.0}), Task("b", {"q": 1.0})], [("a", "b", 6)])
    where = Platform(["p", "q"], default_link=Link(bandwidth=2.0, latency_s=0.5))
    assert bounds_of(tasks, where).path_s == pytest.approx(1.0 + 3.5 + 1.0)


def test_the_path_takes_the_slow_device_where_crossing_takes_longer() -> None:
    tasks = TaskGraph([Task("a", {"p": 1.0}), Task("b", {"p": 3.0, "q": 1.0})], [("a", "b", 6)])
    slow = Platform(["p", "q"], default_link=Link(bandwidth=2.0))
    fast = Platform(["p", "q"], default_link=Link(bandwidth=12.0))
    assert bounds_of(tasks, slow).path_s == pytest.approx(4.0)
    assert bounds_of(tasks, fast).path_s == pytest.approx(2.5)


def test_pinned_tasks_load_their_device() -> None:
    tasks = TaskGraph([Task(f"t{i}", {"p": 1.0}) for i in range(5)] + [Task("u", {"q": 1.0})])
    assert bounds_of(tasks, Platform(["p", "q"])).pinned_s == pytest.approx(5.0)


def test_links_are_loaded_by_pinned_ends() -> None:
    tasks = TaskGraph(
        [Task("a", {"p": 0.0}), *(Task(f"b{i}", {"q": 0.0}) for i in range(4))],
        [("a", f"b{i}", 3) for i in range(4)],
    )
    where = Platform(["p", "q"], default_link=Link(bandwidth=1.0))
    assert bounds_of(tasks, where).links_s == 0.0
    assert bounds_of(tasks, where, links="exclusive").links_s == pytest.approx(12.0)
    assert schedule(tasks, where, links="exclusive").makespan_s == pytest.approx(12.0)


@settings(max_examples=examples(100), deadline=None)
@given(instances())
def test_weights_of_devices_never_pass_the_linear_program(instance: Instance) -> None:
    problem = make_problem(*instance)
    exact, _ = area_bound(problem)
    weights, by = area_bound(problem, linear=False)
    assert weights <= exact * (1 + 1e-6) + 1e-12
    assert by == "weights of devices"


def test_weights_of_devices_come_close_to_the_linear_program() -> None:
    for seed in range(8):
        problem = make_problem(*drawn(seed, 60, 5, missing=0.2))
        assert area_bound(problem, linear=False)[0] >= 0.98 * area_bound(problem)[0]


def test_bounds_are_under_the_optimum() -> None:
    for seed in range(12):
        tasks, where = drawn(seed, 6, 3, missing=0.3)
        assert bounds_of(tasks, where).value_s <= optimum(tasks, where)


def test_without_scipy_weights_of_devices_say_what_to_install_where_it_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    where = Platform(["p", "q"])
    wide = TaskGraph([Task(f"t{i}", {"p": 1.0, "q": 2.0}) for i in range(9)])
    plan = schedule(wide, where, "heft").verify()
    assert plan.as_dict()["bounds_s"]["by"] == WEIGHTS + HINT
    assert plan.ratio >= 1.0
    edges = [(f"t{i}", f"t{i + 1}", 0) for i in range(8)]
    chain = TaskGraph(wide.tasks, edges)  # its path bounds it, whatever solves the area
    assert schedule(chain, where, "heft").bounds.by == WEIGHTS


def test_what_is_too_large_for_a_linear_program_asks_for_no_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.setattr("vksched.schedule.model.lower_bounds.CELLS", 3)
    tasks = TaskGraph([Task(f"t{i}", {"p": 1.0 + i, "q": 2.0}) for i in range(9)])
    assert schedule(tasks, Platform(["p", "q"]), "heft").bounds.by == WEIGHTS


def test_the_linear_program_is_exact_next_to_a_device_that_is_much_slower() -> None:
    costs = ({"p0": 1.0}, {"p0": 1.0, "p1": 1.0}, {"p0": 2.0, "p1": 3e-5})
    tasks = TaskGraph([Task(f"t{i}", cost) for i, cost in enumerate(costs)])
    exact, by = area_bound(make_problem(tasks, Platform(["p0", "p1"])))
    assert exact == pytest.approx((1.0 + 1.0 + 3e-5) / 2, rel=1e-9) and by == "linear program"
