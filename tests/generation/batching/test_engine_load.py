"""The time at which a new request would end."""

from __future__ import annotations

import math

import pytest

from vksched.generation.batching.engine_load import EngineLoad, EngineSpeeds, expected_s
from vksched.generation.batching.step_costs import StepCosts
from vksched.generation.completion import CompletionRequest

SPEEDS = EngineSpeeds(0.01, {1: 1.0, 4: 2.0})
REQUEST = CompletionRequest((1,) * 10, 5)


def seconds(load: EngineLoad, costs: StepCosts | None = None, mean: float = math.inf) -> float:
    return expected_s(load, REQUEST, SPEEDS, costs or StepCosts(), mean)


def test_an_idle_engine() -> None:
    assert seconds(EngineLoad(4)) == pytest.approx(10 * 0.01 + 5 * 1.0)
    assert seconds(EngineLoad(4, reusable_tokens=8)) == pytest.approx(2 * 0.01 + 5 * 1.0)
    assert seconds(EngineLoad(4), mean=2.0) == pytest.approx(10 * 0.01 + 2 * 1.0)


def test_running_requests_make_steps_wider() -> None:
    load = EngineLoad(4, (50, 50, 50), prompt_tokens=30)
    assert seconds(load) == pytest.approx(40 * 0.01 + 5 * 2.0)


def test_a_request_waits_for_a_slot() -> None:
    load = EngineLoad(2, (30, 30), (20,))
    assert seconds(load) == pytest.approx(10 * 0.01 + (5 + 80 / 2) * 1.0)


def test_measured_times_replace_predicted_ones() -> None:
    costs = StepCosts()
    costs.observe("decode", 2, 7.0)
    costs.observe("prefill", 8, 0.8)
    costs.observe("prefill", 1, 0.5)
    assert seconds(EngineLoad(4), costs) == pytest.approx(10 * 0.1 + 5 * 7.0)
    assert expected_s(EngineLoad(4), REQUEST, EngineSpeeds(), StepCosts(), math.inf) == 0.0
