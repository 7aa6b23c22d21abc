"""Copies over the bus: right, timed, and left out where there is no bus."""

from __future__ import annotations

import pytest
from conftest import vulkan_names

from vksched.bench.baselines.workloads import COPY, Spec, arrays_of, error_of, work_of
from vksched.bench.peak_throughput import PeakRates
from vksched.bench.report import rates
from vksched.bench.rounds import measure_case
from vksched.bench.suites import fitting, specs_of
from vksched.bench.vksched_runner import VkschedRunner

COPIES = [
    Spec(way, COPY, "bus", {"bytes": 1 << 16, "direction": way, "hardware": True})
    for way in ("in", "out")
]


@pytest.mark.parametrize("spec", COPIES, ids=lambda spec: spec.name)
@pytest.mark.parametrize("device", vulkan_names())
def test_values_come_back_as_they_were(device: str, spec: Spec) -> None:
    ours = VkschedRunner(device)
    try:
        (figure,) = measure_case(device, spec, [ours], 1e-3, rounds=1).figures
        assert figure.nmse == 0.0 and (figure.seconds or 0.0) > 0, figure.reason
    finally:
        ours.close()


def test_numpy_has_no_bus() -> None:
    ours = VkschedRunner("cpu")
    try:
        assert "no bus" in ours.prepare(COPIES[0])["skip"]
    finally:
        ours.close()


def test_copies_are_for_hardware_and_have_bytes_alone() -> None:
    specs = specs_of("overhead")
    copies = [spec for spec in specs if spec.kind == COPY]
    assert [spec["direction"] for spec in copies] == ["in", "out"]
    assert not {spec.name for spec in copies} & {spec.name for spec in fitting(specs, "cpu")}
    assert work_of(copies[0]) == (0.0, float(256 << 20))
    assert rates(COPIES[0], 1e-3, PeakRates(1e9, 1e9, "", "")) == (0.0, 0.065536, None)
    wrong = arrays_of(COPIES[0])["x0"][::-1]
    assert error_of(COPIES[0], arrays_of(COPIES[0]), wrong) > 0.1
