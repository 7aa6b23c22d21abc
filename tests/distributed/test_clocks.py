"""The clock of another computer is read within the bound that is told, however it runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vksched.distributed.driver.clock_sync import DRIFT, RemoteClock


def test_one_answer_tells_within_half_of_its_time() -> None:
    clock = RemoteClock()
    assert clock.estimate(5.0).error_s(5.0) == math.inf
    clock.note(10.0, 1000.0, 1000.0, 10.5)
    estimate = clock.estimate(10.25)
    assert estimate.to_local_s(1000.0) == 10.25 and estimate.error_s(10.25) == 0.25
    assert estimate.to_local_s(1003.0) == 13.25
    assert estimate.error_s(10.25, 12.25) == 0.25 + 2 * DRIFT


def test_what_the_other_one_takes_for_its_answer_does_not_count() -> None:
    clock = RemoteClock()
    clock.note(10.0, 510.001, 513.001, 13.002)
    estimate = clock.estimate(13.0)
    assert estimate.error_s(estimate.best.when_s) == pytest.approx(0.001)
    assert estimate.to_local_s(511.0) == pytest.approx(11.0)


def test_a_slow_answer_does_not_spoil_a_fast_one_until_that_is_old() -> None:
    clock = RemoteClock()
    clock.note(0.0, 100.001, 100.001, 0.002)
    clock.note(1.0, 101.9, 101.9, 2.0)
    assert clock.estimate(2.0).to_local_s(102.0) == pytest.approx(2.0)
    clock.note(50.0, 150.01, 150.01, 50.02)
    assert clock.estimate(50.02).best.when_s == pytest.approx(0.001)
    clock.note(200.0, 300.005, 300.005, 200.01)
    assert clock.estimate(200.01).best.when_s == pytest.approx(200.005)


@pytest.mark.parametrize("pace", [0.0, 5e-5, -8e-5])
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_for_clocks_that_drift_and_answers_that_wait(
    pace: float, seed: int
) -> None:
    rng, clock = np.random.default_rng(seed), RemoteClock()
    errors, bounds = [], []
    for step in range(300):
        now_s = 2.0 * step
        there, back = rng.exponential(1e-4, 2) + (rng.random(2) < 0.1) * rng.random(2)
        busy = rng.random() * (rng.random() < 0.5)
        came_s, left_s = now_s + there, now_s + there + busy
        reported = (7000 + each * (1 + pace) for each in (came_s, left_s))
        clock.note(now_s, *reported, left_s + back)
        at_s = left_s + back + 2 * rng.random()
        estimate = clock.estimate(at_s)
        errors.append(abs(estimate.to_local_s(7000 + at_s * (1 + pace)) - at_s))
        bounds.append(estimate.error_s(at_s))
    assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    assert np.median(bounds) < 1e-3


def test_the_bound_holds_where_the_way_is_too_slow_to_tell_a_pace() -> None:
    clock = RemoteClock()
    clock.note(0.0, 100.008, 100.008, 0.008)  # all of the time on the way there
    clock.note(12.0, 112.0, 112.0, 12.008)  # and back
    for at_s in (12.0, 20.0, 40.0):
        estimate = clock.estimate(at_s)
        assert abs(estimate.to_local_s(100.0 + at_s) - at_s) <= estimate.error_s(at_s)
