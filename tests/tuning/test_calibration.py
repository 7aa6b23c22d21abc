"""Calibration as data: the links that explain transfers, the curves that explain calls."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

import vksched as vs
from vksched.tuning.calibration_types import (
    Calibration,
    Overheads,
    Sample,
    fit_link,
    sample_of,
    through,
)

SPEEDS = (1e12, 1e10, 1e-7)
SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)


def known(*samples: Sample, **options: Any) -> Calibration:
    options = {"overheads": Overheads(launch_s=1e-6), "when": "2026-07-01", **options}
    return Calibration(SPEEDS, samples=samples, **options)


def test_a_fit_finds_the_link_that_produced_the_times() -> None:
    link = vs.Link(12e9, 20e-6)
    found = fit_link([(size, link.seconds(size)) for size in SIZES])
    assert found.bytes_per_s == pytest.approx(12e9, rel=1e-6)
    assert found.latency_s == pytest.approx(20e-6, rel=1e-6)


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_one_transfer_that_was_held_up_moves_the_link_little(late: int) -> None:
    link = vs.Link(12e9, 20e-6)
    taken = [(size, link.seconds(size)) for size in (*SIZES, 1 << 18, 1 << 22)]
    taken[late] = (taken[late][0], 5 * taken[late][1])
    found = fit_link(taken)
    for size in (1 << 14, 1 << 19, 1 << 24):
        assert found.seconds(size) == pytest.approx(link.seconds(size), rel=0.25)


def test_links_stay_sensible_whatever_the_times_say() -> None:
    shrinking = fit_link([(1 << 12, 3e-3), (1 << 20, 1e-3)])
    assert shrinking.bytes_per_s > 1e12 and shrinking.latency_s > 0
    steep = fit_link([(1 << 12, 1e-9), (1 << 20, 1e-3)])
    assert steep.latency_s >= 0 and steep.bytes_per_s > 0
    nothing = fit_link([(1 << 12, 0.0), (1 << 20, 0.0)])
    assert nothing.seconds(1 << 30) < 1e-5


def test_two_links_in_a_row_are_one() -> None:
    one, other = vs.Link(1e9, 1e-6), vs.Link(3e9, 2e-6)
    both = through(one, other)
    assert both.seconds(6e9) == pytest.approx(one.seconds(6e9) + other.seconds(6e9))


def test_a_sample_counts_work_without_the_launch() -> None:
    sample = sample_of("relu", 2.0**-14, "bytes", 3 * 2.0**-14 + 1e-6, 1e-6)
    assert sample.size == pytest.approx(-14) and sample.factor == pytest.approx(3.0)
    assert sample.place == ("relu", "bytes", -14)
    short = sample_of("relu", 1e-9, "bytes", 1e-6, 2e-6)
    assert short.factor == pytest.approx(0.05 * 1e-6 / 1e-9)
    nothing = sample_of("relu", 0.0, "bytes", 0.0, 0.0)
    assert math.isfinite(nothing.size) and nothing.factor > 0


def test_curves_are_of_an_op_its_family_and_all_ops() -> None:
    costs = known(
        Sample("relu", "bytes", -14.0, 2.0),
        Sample("exp", "bytes", -14.0, 8.0),
        Sample("softmax", "bytes", -10.0, 3.0),
        Sample("matmul+transpose_b", "flops", -10.0, 1.5),
        Sample("matmul", "flops", -10.0, 6.0),
        Sample("copy in", "bytes", -10.0, 0.5),
        Sample("of another version", "bytes", -10.0, 100.0),
    ).costs
    assert costs.factor(["relu/bytes"], 2.0**-14) == (2.0, "relu/bytes")
    assert costs.factor(["tanh/bytes", "elementwise/bytes"], 2.0**-14)[0] == pytest.approx(4.0)
    assert costs.factor(["*/bytes"], 2.0**-10)[0] == pytest.approx(3.0)
    assert costs.factor(["matmul+transpose_b/flops"], 1.0)[0] == pytest.approx(1.5)
    assert costs.factor(["matmul/flops"], 1.0)[0] == pytest.approx(6.0)  # of plain calls alone
    assert costs.factor(["linalg/flops"], 1.0)[0] == pytest.approx(3.0)  # of both ways
    ways = known(
        Sample("matmul+transpose_b", "flops", -10.0, 1.5),
        Sample("matmul+then", "flops", -10.0, 6.0),
    ).costs
    assert ways.factor(["matmul/flops"], 1.0)[0] == pytest.approx(3.0)  # no plain one was measured
    assert costs.factor(["linalg/flops"], 1.0)[0] == pytest.approx(3.0)
    assert costs.factor(["copy in/bytes"], 1.0)[0] == 0.5
    assert costs.calls == 7 and costs.launch_s == 1e-6 and costs.when == "2026-07-01"


def test_newer_measurements_replace_those_of_their_size_class() -> None:
    old = known(Sample("relu", "bytes", -14.1, 2.0), Sample("exp", "bytes", -14.0, 8.0))
    new = known(
        Sample("relu", "bytes", -13.9, 4.0), overheads=None, when="2026-08-01", bytes_per_s=5.0
    )
    both = old.plus(new)
    assert {s.op: s.factor for s in both.samples} == {"relu": 4.0, "exp": 8.0}
    assert both.overheads == old.overheads and both.when == "2026-08-01"
    assert both.bytes_per_s == 5.0
    other = replace(new, speeds=(2e12, 1e10, 1e-7))
    assert old.plus(other) == other  # factors count from other speeds


def test_nothing_measured_costs_nothing() -> None:
    assert not Calibration(SPEEDS) and not Calibration(SPEEDS).costs
    assert known() and known().costs.calls == 1


def test_a_calibration_is_plain_data() -> None:
    both = known(
        Sample("relu", "bytes", -14.1, 2.0, "abc"),
        link_in=vs.Link(1e9, 1e-6),
        link_out=vs.Link(2e9),
        flops_per_s=1e9,
    )
    again = Calibration.from_dict(json.loads(json.dumps(both.as_dict())))
    assert again == both and again.costs == both.costs
    assert Calibration.from_dict(Calibration(SPEEDS).as_dict()) == Calibration(SPEEDS)
