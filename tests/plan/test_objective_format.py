"""Objective formatter: which number of a plan counts, and how a difference is told."""

from __future__ import annotations

import pytest

from vksched.plan.types.objective_format import ObjectiveFormatter, less, objective_of
from vksched.schedule import Metrics, Objective
from vksched.schedule.model.objectives import LATENCY, WORDS

BASE = Metrics(latency_s=2.0, period_s=1.0, peak_bytes=1024.0, energy_j=8.0)
OTHER = Metrics(latency_s=3.0, period_s=4.0, peak_bytes=512.0, energy_j=8.0)


def formatter(objective: str, base: Metrics | None = BASE) -> ObjectiveFormatter:
    return ObjectiveFormatter.of(Objective.of(objective), base)


@pytest.mark.parametrize(
    ("objective", "value", "factor", "text", "times"),
    [
        ("latency", 3.0, 1.5, "3 s", "50 % longer"),
        ("throughput", 4.0, 4.0, "4 s", "4 times as long"),
        ("memory", 512.0, 0.5, "512 B", "50 % less"),
        ("energy", 8.0, 1.0, "8 J", "0 % more energy"),
        ("latency=1,memory=3", 0.75, 0.75, "0.75", "25 % smaller"),
    ],
)
def test_each_objective_has_its_number(
    objective: str, value: float, factor: float, text: str, times: str
) -> None:
    found = formatter(objective)
    assert found.value(OTHER) == value and found.factor(OTHER) == factor
    assert found.text(value) == text and found.times(factor) == times
    assert found.factor(BASE) == 1.0


def test_sentences_can_be_built_for_every_objective() -> None:
    reported = []
    for name in (*WORDS, "latency=1,energy=1"):
        phrases = formatter(name).phrases
        reported.append(f"{phrases.what} {phrases.does} as {phrases.large}")
        reported.append(f"{phrases.what} would {phrases.do} {less(0.25)} {phrases.less}")
        reported.append(f"it makes {phrases.result} {less(0.25)} {phrases.smaller}")
    assert reported == [
        "a run takes as long",
        "a run would take 75 % less",
        "it makes a run 75 % shorter",
        "a run in a stream takes as long",
        "a run in a stream would take 75 % less",
        "it makes a run in a stream 75 % shorter",
        "the fullest device holds as much",
        "the fullest device would hold 75 % less",
        "it makes the fullest device hold 75 % less",
        "a run takes as much energy",
        "a run would take 75 % less energy",
        "it makes a run take 75 % less energy",
        "the mix is as large",
        "the mix would be 75 % smaller",
        "it makes the mix 75 % smaller",
    ]


def test_nothing_to_compare_with_has_no_factor() -> None:
    assert formatter("latency", None).factor(OTHER) is None
    nothing = Metrics(0.0, 0.0, 0.0, 0.0)
    assert formatter("energy", nothing).factor(OTHER) is None
    assert formatter("memory", nothing).value(OTHER) == 512.0


def test_nearly_all_is_not_all() -> None:
    assert less(0.004) == "over 99 %" and less(0.01) == "99 %" and less(0.0) == "100 %"


def test_without_a_plan_the_time_of_a_run_counts() -> None:
    assert objective_of(None) == LATENCY
