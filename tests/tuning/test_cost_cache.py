"""PerfModel on disk: kept by device and driver, merged, and never in the way."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vksched as vs
from vksched.common.user_warning import VkschedWarning
from vksched.storage import disk_cache
from vksched.storage.crash_marker import CrashMarker
from vksched.tuning.calibration_types import Calibration, Overheads, Sample
from vksched.tuning.cost_cache import CostCache
from vksched.tuning.device_cache import MAX_FILES, Identity
from vksched.tuning.tunable_calls import shader_hash

CARD = Identity("01234567", "driver 1.0", "Card")
SPEEDS = (1e12, 1e10, 1e-7)


def relu(factor: float = 2.0, size: float = -14.0, shaders: str | None = None) -> Sample:
    shaders = shader_hash("relu") if shaders is None else shaders
    return Sample("relu", "bytes", size, factor, shaders)


def known(*samples: Sample) -> Calibration:
    link = vs.Link(1e9, 1e-6)
    return Calibration(SPEEDS, Overheads(1e-6, 2e-6), link, link, samples, when="2026-07-01")


def test_what_is_added_is_there_for_the_next_program(tmp_path: Path) -> None:
    assert CostCache(tmp_path).load(CARD) is None
    assert CostCache(tmp_path).add(CARD, known(relu()))
    assert CostCache(tmp_path).load(CARD) == known(relu())
    assert CostCache(tmp_path).add(CARD, known(relu(4.0), relu(3.0, -10.0)))
    assert CostCache(tmp_path).load(CARD) == known(relu(4.0), relu(3.0, -10.0))
    assert CostCache(tmp_path).clear(CARD) and not CostCache(tmp_path).clear(CARD)
    assert CostCache(tmp_path).load(CARD) is None


def test_results_of_other_shaders_ops_and_drivers_are_not_used(tmp_path: Path) -> None:
    copied = Sample("copy in", "bytes", -9.0, 1.0)
    gone = Sample("no such op", "bytes", -9.0, 1.0)
    CostCache(tmp_path).add(CARD, known(relu(shaders="other"), copied, gone))
    assert CostCache(tmp_path).load(CARD) == known(copied)
    assert CostCache(tmp_path).load(Identity("01234567", "driver 2.0", "Card")) is None
    on_numpy = relu(shaders="")
    CostCache(tmp_path).add(CARD, known(on_numpy))
    found = CostCache(tmp_path).load(CARD)
    assert found is not None and on_numpy in found.samples


def test_files_of_the_oldest_drivers_are_removed(tmp_path: Path) -> None:
    store = CostCache(tmp_path)
    drivers = [replace(CARD, driver=f"driver {number}") for number in range(MAX_FILES)]
    for age, each in enumerate(drivers):
        assert store.add(each, known(relu()))
        path = store.path(each)
        assert path is not None
        os.utime(path, (1000 - age, 1000 - age))
    assert all(store.load(each) for each in drivers)
    assert store.add(replace(CARD, driver="the newest"), known(relu()))
    assert [each for each in drivers if store.load(each) is None] == drivers[-1:]


def _with(**changes: Any) -> str:
    calibration = {**known(relu()).as_dict(), **changes}
    about = {"format": 2, "uuid": CARD.uuid, "driver": CARD.driver, "label": CARD.label}
    return json.dumps({**about, "calibration": calibration})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"format": 1}',
        '{"format": 2, "driver": "driver 1.0", "calibration": 5}',
        "[" * 100_000,
        _with(speeds=[1.0]),
        _with(speeds=[1.0, 0.0, 1.0]),
        _with(samples=[{}]),
        _with(samples=[{"op": "relu", "bound": "bytes", "size": 1, "factor": -1, "shaders": ""}]),
        _with(link_in={"bytes_per_s": 0, "latency_s": 0}),
        _with(overheads={"launch_s": "nan"}),
        _with(overheads={"no such": 1.0}),
    ],
)
def test_a_damaged_file_is_a_warning_and_is_written_anew(tmp_path: Path, text: str) -> None:
    store = CostCache(tmp_path)
    path = store.path(CARD)
    assert path is not None
    path.parent.mkdir()
    path.write_text(text)
    disk_cache._warned.clear()
    with pytest.warns(VkschedWarning, match="is not used: .*try `vksched calibrate`"):
        assert store.load(CARD) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load(CARD) is None  # said once
        assert store.add(CARD, known(relu()))
        assert store.load(CARD) == known(relu())
    aside = path.with_suffix(".damaged")
    assert aside.read_text() == text if aside.exists() else "format" in text[:12]


def test_a_damaged_file_that_is_written_over_is_set_aside(tmp_path: Path) -> None:
    store = CostCache(tmp_path)
    path = store.path(CARD)
    assert path is not None
    path.parent.mkdir()
    path.write_text("{")
    assert store.add(CARD, known(relu()))
    assert store.load(CARD) == known(relu())
    assert path.with_suffix(".damaged").read_text() == "{"


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file")
    store = CostCache(tmp_path)
    with pytest.warns(VkschedWarning, match="results are not cached.*VKSCHED_CACHE"):
        assert not store.add(CARD, known(relu()))
    assert not store.add(CARD, known(relu()))


def test_what_took_the_device_with_it_is_reported(tmp_path: Path) -> None:
    marker = CrashMarker(CostCache(tmp_path).path(CARD))
    marker.begin("conv", "flops", "")
    assert CostCache(tmp_path).crashed_variants(CARD) == frozenset()  # it is being measured
    marker.close(failed=True)
    assert CostCache(tmp_path).crashed_variants(CARD) == {("conv", "flops")}
    CostCache(tmp_path).clear(CARD)
    assert CostCache(tmp_path).crashed_variants(CARD) == frozenset()
