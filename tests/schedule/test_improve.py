"""Moves, kicks and loads: each keeps what the simulator says."""

from __future__ import annotations

import random

import pytest
from drawn_tasks import Instance, drawn, instances
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from vksched.schedule import Link, Platform, Task, TaskGraph, schedule
from vksched.schedule.local_search.annealing import descend, kick, search
from vksched.schedule.local_search.chains import Chains
from vksched.schedule.local_search.loads import Loads
from vksched.schedule.local_search.reinsertion import Local
from vksched.schedule.model.problem import make_problem
from vksched.schedule.model.simulate_tasks import TaskPlacement, simulate
from vksched.schedule.policies import POLICIES, heft, single


@settings(max_examples=examples(120), deadline=None)
@given(instances(), st.integers(0, 9), st.sampled_from(sorted(POLICIES)))
def test_moves_never_make_it_longer_and_times_are_those_of_the_simulator(
    instance: Instance, seed: int, policy: str
) -> None:
    problem = make_problem(*instance)
    rng = random.Random(seed)
    if not problem.n:
        return
    local = Local(problem, POLICIES[policy](problem))
    for _ in range(12):
        before = local.makespan
        local.move(rng.randrange(problem.n))
        assert local.makespan <= before * (1 + 1e-12)
        times = simulate(problem, local.placed())
        assert local.up == pytest.approx(times.finish)
        assert local.makespan == times.makespan
        ranks = [local.through(t) for t in range(problem.n)]
        assert max(ranks, default=0.0) == pytest.approx(local.makespan)


@settings(max_examples=examples(80), deadline=None)
@given(instances(), st.integers(0, 9))
def test_kicks_and_descents_keep_the_order_and_what_devices_can(
    instance: Instance, seed: int
) -> None:
    problem = make_problem(*instance)
    if not problem.n:
        return
    rng = random.Random(seed)
    local = Local(problem, heft(problem))
    for _ in range(5):
        kick(local, rng)
        descend(local, rng, local.steps + 1000)
        place = {t: at for at, t in enumerate(local.order)}
        assert sorted(place) == list(range(problem.n))
        assert all(place[p] < place[t] for t in place for p, _ in problem.before[t])
        assert all(d in problem.candidate_devices[t] for t, d in enumerate(local.device))
        assert local.makespan == simulate(problem, local.placed()).makespan


def test_one_move_finds_the_slot_between_two_others() -> None:
    # a, b and c on one device; d alone on the other has room beside them
    tasks = TaskGraph([Task(n, {"p": 2.0, "q": 2.0}) for n in "abcd"], [("a", "b", 0)])
    problem = make_problem(tasks, Platform(["p", "q"]))
    local = Local(problem, single(problem, 0))
    assert local.makespan == 8.0
    descend(local, random.Random(0), 1e9)
    assert local.makespan == 4.0


def test_blocks_move_together_where_transfers_are_long() -> None:
    # each task alone wants to stay where its neighbours are: on the slow device
    chain = TaskGraph(
        [Task(f"t{i}", {"slow": 2.0, "fast": 1.0}) for i in range(6)],
        [(f"t{i}", f"t{i + 1}", 8_000_000_000) for i in range(5)],
    )
    problem = make_problem(chain, Platform(["slow", "fast"]))
    stuck = Local(problem, single(problem, 0))
    stuck_at = stuck.makespan
    found = search(problem, single(problem, 0), 200_000.0, 6.0, random.Random(0))
    assert simulate(problem, found).makespan == 6.0 < stuck_at


def stencil(parts: int, steps: int) -> TaskGraph:
    """Return tasks that read their own part and a tenth of their neighbours, step by step."""
    cells = [(step, i) for step in range(steps) for i in range(parts)]
    edges = [
        (f"{step - 1}.{j}", f"{step}.{i}", 1000 if i == j else 100)
        for step, i in cells
        for j in (i - 1, i, i + 1)
        if step and 0 <= j < parts
    ]
    return TaskGraph([Task(f"{s}.{i}", {"p": 1.0, "q": 1.0}) for s, i in cells], edges)


def test_chains_are_the_parts_of_a_stencil_as_far_as_they_share_a_device() -> None:
    problem = make_problem(stencil(3, 5), Platform(["p", "q"]))
    chains, device = Chains(problem), [0] * problem.n
    middle = [1, 4, 7, 10, 13]
    assert all(sorted(chains.around(v, device)) == middle for v in middle)
    device[7] = 1
    assert sorted(chains.around(1, device)) == [1, 4]
    assert chains.around(7, device) == [7]
    assert sorted(chains.around(10, device)) == [10, 13]


def test_edges_that_carry_no_more_than_half_make_no_chain() -> None:
    names = ["top", "left", "right", "end"]
    tasks = [Task(name, {"p": 1.0}) for name in names]
    edges = [("top", "left", 8), ("top", "right", 8), ("left", "end", 9), ("right", "end", 8)]
    problem = make_problem(TaskGraph(tasks, edges), Platform(["p"]))
    chains = Chains(problem)
    # half of what leaves "top" is not more than half; 9 of the 17 bytes that reach "end" are
    assert [sorted(chains.around(v, [0] * 4)) for v in range(4)] == [[0], [1, 3], [2], [1, 3]]


@settings(max_examples=examples(80), deadline=None)
@given(instances(), st.integers(0, 9))
def test_a_trial_says_what_the_simulator_says_and_leaves_everything_as_it_is(
    instance: Instance, seed: int
) -> None:
    problem = make_problem(*instance)
    if not problem.n:
        return
    rng = random.Random(seed)
    local = Local(problem, heft(problem))
    before = local.placed()
    for _ in range(5):
        chain = local.chains.around(rng.randrange(problem.n), local.device)
        d = rng.randrange(problem.m)
        device = list(before.device)
        for t in chain:
            if problem.cost[t][d] < float("inf"):
                device[t] = d
        expected = simulate(problem, TaskPlacement(device, list(before.order))).makespan
        assert local.trial(chain, d) == expected
        assert local.placed() == before


def test_a_kick_shifts_a_whole_chain_to_the_best_of_a_few_devices() -> None:
    seconds = {"home": 2.0, "slow": 3.0, "slower": 4.0, "fast": 1.0}
    tasks = TaskGraph(
        [Task(f"t{i}", seconds) for i in range(40)],
        [(f"t{i}", f"t{i + 1}", 1000) for i in range(39)],
    )
    problem = make_problem(tasks, Platform(seconds))
    local = Local(problem, single(problem, 0))
    start, moved = local.placed(), list[tuple[int, set[int]]]()
    for seed in range(40):
        kick(local, random.Random(seed))
        moved.append((sum(d != 0 for d in local.device), set(local.device)))
        local.load(start)
    whole = [devices for many, devices in moved if many == 40]
    assert len(whole) > 10 and all(devices == {3} for devices in whole)
    assert max(many for many, _ in moved if many < 40) < 20  # a block is smaller


def test_the_search_ends_at_the_bound() -> None:
    problem = make_problem(TaskGraph([Task("a", {"p": 1.0})]), Platform(["p"]))
    assert search(problem, heft(problem), 1e12, 1.0, random.Random(0)).device == [0]


def test_loads_are_those_of_the_devices_after_every_move() -> None:
    problem = make_problem(*drawn(5, 50, 4))
    rng = random.Random(0)
    loads = Loads(problem, single(problem, 0).device)
    top = loads.load.max()
    while loads.jump() or loads.swap(rng):
        assert loads.load.max() < top
        top = loads.load.max()
        stored = loads.load.copy()
        loads.refresh()
        assert loads.load == pytest.approx(stored)
    plan = schedule(*drawn(5, 50, 4), objective="throughput", budget_s=0.1)
    assert plan.period_s <= top
    assert plan.ratio <= 1.05


def test_a_stream_whose_tasks_take_no_time_and_whose_transfers_do_is_scheduled() -> None:
    # the largest load is that of a link; the device that is fullest by tasks may have none
    where = Platform(["p", "q", "r"], default_link=Link(bandwidth=1.0))
    tasks = [Task("a", {"q": 0.0}), Task("b", {"q": 0.0, "r": 0.0}), Task("c", {"r": 0.0})]
    chain = TaskGraph(tasks, [("a", "b", 3), ("b", "c", 2)])
    plan = schedule(chain, where, objective="throughput", links="exclusive", budget_s=0.1)
    assert plan.verify().period_s in (2.0, 3.0)


def test_throughput_fills_devices_evenly_where_latency_cannot() -> None:
    # a chain takes 12 s whatever is done, yet a stream of it can have 3 runs under way
    chain = TaskGraph(
        [Task(f"t{i}", {"p": 1.0, "q": 1.0, "r": 1.0}) for i in range(12)],
        [(f"t{i}", f"t{i + 1}", 0) for i in range(11)],
    )
    where = Platform(["p", "q", "r"])
    assert schedule(chain, where).makespan_s == 12.0
    stream = schedule(chain, where, objective="throughput").verify()
    assert stream.period_s == stream.value_s == 4.0
    assert stream.lower_bound_s == pytest.approx(4.0)
