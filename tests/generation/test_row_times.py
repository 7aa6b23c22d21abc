"""The graphs that decode a token of several slots, by measured times."""

from __future__ import annotations

import random

from vksched.generation.row_times import DOUBT, RowTimes

COUNTS = (1, 2, 4, 8)


def measured(seconds: dict[int, float]) -> RowTimes:
    times = RowTimes()
    for rows, each in seconds.items():
        times.measure(rows, each)
    return times


def test_the_cheapest_combination_of_graphs_is_planned() -> None:
    times = measured({1: 1.0, 2: 1.5, 4: 3.5, 8: 4.0})
    assert sorted(times.plan(3, COUNTS)) == [1, 2]
    assert times.plan(8, COUNTS) == (8,)


def test_a_graph_that_was_slow_once_is_measured_again() -> None:
    """Its first time was measured while other programs ran."""
    times = measured({1: 1.0, 2: 1.9, 4: 6.0, 8: 7.0})
    plans = 0
    while times.plan(4, COUNTS) != (4,):
        plans += 1
        assert plans < 1 / DOUBT
    times.measure(4, 2.0)
    assert times.plan(4, COUNTS) == (4,)
    assert times._seconds[4] == 2.0


def test_a_graph_that_is_slow_is_measured_rarely() -> None:
    seconds = {1: 1.0, 2: 1.9, 4: 6.0, 8: 7.0}
    times, used = measured(seconds), 0
    for _ in range(4000):
        plan = times.plan(4, COUNTS)
        used += plan == (4,)
        for rows in plan:
            times.measure(rows, seconds[rows])
    assert 0 < used < 20


def test_graphs_with_more_idle_rows_than_another_are_not_tried() -> None:
    times = measured({1: 1.0, 2: 1.9, 4: 3.0, 8: 5.0})
    assert {times.plan(1, COUNTS) for _ in range(5000)} == {(1,)}


def test_single_slow_runs_cost_little() -> None:
    """One run of a hundred takes three times as long, and the number of slots changes."""
    seconds = {1: 1.0, 2: 1.3, 4: 1.8, 8: 3.0}
    rng, times = random.Random(0), measured(seconds)
    spent = least = 0.0
    for step in range(8000):
        count = step % 8 + 1 if step < 4000 else 8
        plan = times.plan(count, COUNTS)
        spent += sum(seconds[rows] for rows in plan)
        least += sum(seconds[rows] for rows in measured(seconds).plan(count, COUNTS))
        for rows in plan:
            times.measure(rows, seconds[rows] * (3 if rng.random() < 0.01 else 1))
    assert spent < 1.02 * least


def test_no_plan_is_tried_that_takes_many_runs() -> None:
    """Steps of eight rows take little longer than those of one."""
    seconds = {1: 1.0, 2: 1.01, 4: 1.03, 8: 1.06}
    times = measured(seconds)
    assert {times.plan(8, COUNTS) for _ in range(5000)} == {(8,), (4, 4)}
