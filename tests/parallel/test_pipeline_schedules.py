"""Pipeline schedules against the published formulas for idle time and for what is held."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vksched as vs
from vksched.parallel.pipeline import (
    Action,
    PhaseTimes,
    PipelineSchedule,
    draw_chart,
    dualpipe,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
)

COUNTS = [(p, m) for p in (1, 2, 4, 8) for m in (p, 2 * p, 3 * p, 8 * p)]
TIMES = (PhaseTimes(), PhaseTimes(2.0, 3.0, 1.0), PhaseTimes(1.0, 1.5, 1.25))
DUAL = [(p, k * p) for p in (2, 4, 8, 16) for k in (2, 3, 5)]
counts = pytest.mark.parametrize(("p", "m"), COUNTS, ids=str)


@counts
def test_pipelines_that_fill_once_are_idle_by_the_formula(p: int, m: int) -> None:
    for times in TIMES:
        for make in (gpipe, one_f_one_b):
            got = simulate(make(p, m).verify(), times)
            assert got.bubble_share == pytest.approx((p - 1) / (m + p - 1))
            whole = times.forward_s + times.inputs_s + times.weights_s
            assert got.makespan_s == pytest.approx((m + p - 1) * whole)
    assert simulate(gpipe(p, m)).peak_held == (m,) * p
    assert simulate(one_f_one_b(p, m)).peak_held == tuple(min(p - d, m) for d in range(p))


@counts
def test_more_rounds_leave_less_idle(p: int, m: int) -> None:
    for rounds in (1, 2, 3):
        got = simulate(interleaved(p, m, rounds).verify())
        assert got.bubble_share == pytest.approx((p - 1) / (rounds * m + p - 1))
    assert max(simulate(interleaved(p, m, 1)).peak_held) <= 2 * p


@counts
def test_zero_bubble_fills_gaps_with_the_gradients_by_weights(p: int, m: int) -> None:
    plain = simulate(one_f_one_b(p, m))
    first, second = simulate(zb_h1(p, m).verify()), simulate(zb_h2(p, m).verify())
    assert first.bubble_s == pytest.approx(p - 1)  # (p - 1) (F + I - W)
    assert first.bubble_s * 3 == pytest.approx(plain.bubble_s)
    assert max(first.peak_held) == max(plain.peak_held)
    assert max(second.peak_held) == min(2 * p - 1, m)
    if m >= 2 * p - 1:
        assert second.bubble_s == pytest.approx(0.0)


@pytest.mark.parametrize(("p", "m"), DUAL, ids=str)
def test_dualpipe_is_idle_for_no_more_than_published(p: int, m: int) -> None:
    """The formula counts a forward pass beside a backward pass as one; here each starts alone."""
    schedule = dualpipe(p, m).verify()
    got = simulate(schedule)
    forward, backward, weights = 1.0, 2.0, 1.0
    published_s = (p / 2 - 1) * (forward + backward + backward - 3 * weights)
    assert got.bubble_s <= published_s + 1e-9
    assert got.bubble_s < simulate(one_f_one_b(p, m)).bubble_s
    assert max(got.peak_held) == p + 1
    assert schedule.weight_copies == 2


def test_inference_has_forward_passes_alone() -> None:
    schedule = gpipe(3, 5, training=False).verify()
    assert {a.phase for order in schedule.orders for a in order} == {"F"}
    assert simulate(schedule).makespan_s == 7


MAKERS: dict[str, Callable[[int, int], PipelineSchedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "dualpipe": dualpipe,
}


@given(st.sampled_from(sorted(MAKERS)), st.integers(1, 9), st.integers(1, 30), st.data())
def test_any_size_is_whole_and_no_faster_than_its_parts(
    name: str, p: int, m: int, data: st.DataObject
) -> None:
    try:
        schedule = MAKERS[name](p, m).verify()
    except vs.PlanError as error:
        assert "expected" in str(error)
        return
    seconds = st.floats(0.01, 3.0)
    times = [PhaseTimes(*(data.draw(seconds) for _ in range(4))) for _ in range(schedule.stages)]
    got = simulate(schedule, times)
    assert got.makespan_s >= max(got.busy_s) - 1e-9
    for action in schedule.device_of:
        for need in schedule.needs(action):
            assert got.start_s[action] >= got.finish_s[need] - 1e-9


def test_the_chart_has_a_bar_for_each_action_in_the_colour_of_its_phase() -> None:
    schedule = zb_h1(3, 6)
    chart = draw_chart(simulate(schedule))
    bars = re.findall(r'<rect [^>]*fill="(#\w+)"[^>]*>\s*<title>([FIW])(\d): ', chart)
    assert len(bars) == 3 * 6 * 3
    assert len({(fill, phase) for fill, phase, _ in bars}) == 3
    assert "Pipeline zb-h1" in chart and "stage 2" in chart


def test_wrong_schedules_are_refused() -> None:
    good = one_f_one_b(2, 2)
    first, second = good.orders
    more = (*second, Action("F", 2, 0))
    for orders, match in (
        ((first[:-1], second), "does F of stage 0 for microbatch 1"),
        ((first + first[:1], second), "twice"),
        ((first + second[:1], second[1:]), "parts stage 1"),
        ((first, more), "not there"),
        ((first, tuple(reversed(second))), "waits for ever: device 0 before B0 of stage 0"),
    ):
        with pytest.raises(vs.PlanError, match=match):
            replace(good, orders=orders).verify()
    for make, p, m in ((gpipe, 0, 1), (interleaved, 4, 6), (dualpipe, 3, 8), (dualpipe, 4, 6)):
        with pytest.raises(vs.PlanError, match="expected"):
            make(p, m)
