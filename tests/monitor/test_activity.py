"""What the devices did in the last minute: spread over ticks, counted once, in bounded memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from graphs import make_plan
from hypothesis import given
from hypothesis import strategies as st

import vksched as vs
from vksched.monitor.activity import PENDING, TICK_S, TICKS, Activity, DeviceActivity, Ticks, rate
from vksched.runtime.run_stats import RunStats, SplitStats

A, CPU = "null:0", "cpu"


def stats(number: int, begin_s: float, end_s: float) -> RunStats:
    split = SplitStats(0, A, 1, end_s - begin_s, None, begin_s, end_s)
    return RunStats(number, end_s - begin_s, 1, 1, 0, 64, 64, (split,), begin_s)


def test_seconds_go_to_the_ticks_in_which_they_passed() -> None:
    ticks = Ticks()
    ticks.spread(0.25, 1.6)
    ticks.advance(1.9)
    assert ticks.values()[-4:] == pytest.approx([0.25, 0.5, 0.5, 0.1])


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    ticks = Ticks()
    ticks.add(0.1, 5.0)
    ticks.advance(TICKS * TICK_S - 0.1)
    assert sum(ticks.values()) == 5.0
    ticks.advance(TICKS * TICK_S)
    assert sum(ticks.values()) == 0.0
    ticks.add(0.1, 7.0)  # it comes too late
    assert sum(ticks.values()) == 0.0


def test_a_span_of_hours_fills_a_minute() -> None:
    ticks = Ticks()
    ticks.spread(0.0, 7200.0)
    ticks.advance(7200.0 - 1e-6)
    assert sum(ticks.values()) == pytest.approx((TICKS - 1) * TICK_S, abs=TICK_S)


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 3)), max_size=30))
def test_busy_seconds_are_those_of_the_union(drawn: list[tuple[float, float]]) -> None:
    device, spans = DeviceActivity(), [(begin, begin + long) for begin, long in drawn]
    device.work(spans)
    fine = np.zeros(24_000, bool)  # milliseconds
    for begin, end in spans:
        fine[round(begin * 1000) : round(end * 1000)] = True
    assert device.busy_s == pytest.approx(fine.sum() / 1000, abs=0.002 * len(spans) + 1e-9)
    assert sum(device.busy.values()) == pytest.approx(device.busy_s)
    assert max(device.busy.values()) <= TICK_S + 1e-9


def test_a_split_under_way_counts_up_to_now() -> None:
    device = DeviceActivity()
    device.work([(0.0, 1.0)])
    history, busy = device.shares(2.0, since_s=0.5)
    assert history[-5:] == pytest.approx([1, 1, 1, 1, 0]) and busy == pytest.approx(1.0)
    history, busy = device.shares(2.0, since_s=None)
    assert history[-5:] == pytest.approx([1, 1, 0, 0, 0])
    assert busy == pytest.approx(0.5 / 1.5)


def test_a_rate_counts_the_tick_that_is_not_over_as_long_as_it_is() -> None:
    ticks = Ticks()
    for at_s in np.arange(0.05, 9.25, 0.1):
        ticks.add(at_s, 1.0)
    ticks.advance(9.25)
    assert rate(ticks.values(), 9.25) == pytest.approx(10.0, rel=0.05)


def test_runs_are_counted_with_what_they_move() -> None:
    plan = make_plan(vs.exp(vs.input("x", (4, 4))))
    activity = Activity(vs.SimulatedClock(), ["null:0", "null:1", CPU])
    for number in range(3):
        activity.ran(plan, stats(number, float(number), number + 0.5))
    activity.drain()
    device = activity.devices[A]
    assert (activity.runs, activity.run_s) == (3, 1.5)
    assert (device.runs, device.busy_s) == (3, 1.5)
    assert (device.copies, device.copied_bytes) == (6, 3 * 2 * 64)  # x in and the result out
    assert activity.devices["null:1"].runs == 0


def test_a_list_that_nobody_drains_stays_bounded() -> None:
    plan = make_plan(vs.exp(vs.input("x", (4, 4))))
    activity = Activity(vs.SimulatedClock(), ["null:0", "null:1", CPU])
    for number in range(3 * PENDING + 5):
        activity.ran(plan, stats(number, number * 1e-3, number * 1e-3 + 5e-4))
        assert len(activity._pending) < PENDING
    activity.drain()
    assert activity.runs == 3 * PENDING + 5


def test_no_plan_is_retained_alive() -> None:
    plan = make_plan(vs.exp(vs.input("x", (4, 4))))
    activity = Activity(vs.SimulatedClock(), ["null:0", "null:1", CPU])
    activity.ran(plan, stats(0, 0.0, 1.0))
    activity.drain()
    seen = weakref.ref(plan)
    del plan
    gc.collect()
    assert seen() is None
