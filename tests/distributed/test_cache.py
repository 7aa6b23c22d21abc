"""The cache of weights: bounded, checked, shared by processes, and never needed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_posix

import vksched.distributed.worker.weight_cache as cache_module
from vksched.common.dtypes import NDArray
from vksched.common.user_warning import VkschedWarning
from vksched.distributed.worker.weight_cache import WeightCache, hash_of


def weight(number: int, size: int = 100) -> tuple[str, NDArray]:
    data = np.full(size, number, np.uint8)
    return hash_of([data]), data


def test_what_was_retained_is_there_for_the_next_process(tmp_path: Path) -> None:
    name, data = weight(1)
    stored = WeightCache(tmp_path / "weights").keep(name, data)
    found = WeightCache(tmp_path / "weights").load(name)
    assert found is not None and np.array_equal(found, data) and np.array_equal(stored, data)
    assert not found.flags.writeable
    assert WeightCache(tmp_path / "weights").load("0" * 64) is None


def test_a_hash_is_that_of_all_pieces_together() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert hash_of([array.T]) == hash_of([array.T.tobytes()[:7], array.T.tobytes()[7:]])
    assert hash_of([array]) != hash_of([array.T])


@pytest.mark.parametrize("damage", ["a byte", "the end", "all"])
def test_a_broken_file_is_found_and_removed(tmp_path: Path, damage: str) -> None:
    cache, (name, data) = WeightCache(tmp_path), weight(1)
    cache.keep(name, data)
    text = bytearray((tmp_path / name).read_bytes())
    if damage == "a byte":
        text[50] ^= 1
    (tmp_path / name).write_bytes(text[: {"a byte": 100, "the end": 99, "all": 0}[damage]])
    assert cache.load(name) is None
    cache.keep(name, data)
    assert cache.load(name) is not None


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, most_bytes=250)
    names = [cache_one(cache, number) for number in (1, 2)]
    for at, name in enumerate(names):
        os.utime(tmp_path / name, (1000 + at, 1000 + at))
    assert cache.load(names[0]) is not None  # used now
    third = cache_one(cache, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[0], third])
    name, data = weight(4, 300)
    cache.keep(name, data)
    assert cache.load(name) is None and cache.load(third) is not None


def cache_one(cache: WeightCache, number: int) -> str:
    name, data = weight(number)
    cache.keep(name, data)
    return name


@pytest.mark.parametrize("name", ["", "x", "../x", "/etc/passwd", "A" * 64, "0" * 63, "0" * 65])
def test_names_that_are_no_hashes_lie_nowhere(tmp_path: Path, name: str) -> None:
    cache = WeightCache(tmp_path / "weights")
    cache.keep(name, np.zeros(4, np.uint8))
    assert cache.load(name) is None
    assert list(tmp_path.iterdir()) == []


@needs_posix
def test_without_a_folder_weights_stay_in_memory(tmp_path: Path) -> None:
    name, data = weight(1)
    assert WeightCache(None).keep(name, data) is data
    (tmp_path / "file").write_text("no folder")
    cache = WeightCache(tmp_path / "file")
    with pytest.warns(VkschedWarning, match="weights are not cached"):
        assert cache.keep(name, data) is data
    assert cache.keep(name, data) is data  # told once
    assert cache.load(name) is None


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    name, data = weight(1)
    with pytest.warns(VkschedWarning, match="No space left"):
        assert WeightCache(tmp_path).keep(name, data) is data
    assert list(tmp_path.iterdir()) == []


def test_small_weights_take_no_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, (name, data) = WeightCache(tmp_path), weight(1)
    for mapped in (False, True):
        monkeypatch.setattr(cache_module, "MAPPED_BYTES", data.nbytes if mapped else 1 << 20)
        for found in (cache.keep(name, data), cache.load(name)):
            assert isinstance(found, np.memmap) == mapped
            assert found is not None and not found.flags.writeable and np.array_equal(found, data)
