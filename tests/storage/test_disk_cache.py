"""A disk cache: results by name, bounded, and never needed."""

from __future__ import annotations

import errno
import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_posix

from vksched.common.errors import VkschedError
from vksched.common.user_warning import VkschedWarning
from vksched.storage import disk_cache
from vksched.storage.disk_cache import DiskCache, StaleFile


def parse(content: bytes) -> list[int]:
    data = json.loads(content)
    if data["format"] != 1:
        raise StaleFile(f"expected format 1, got {data['format']}")
    return [int(each) for each in data["numbers"]]


def text(*numbers: int, format: int = 1) -> bytes:
    return json.dumps({"format": format, "numbers": numbers}).encode()


def cache_of(folder: Path | None, **bounds: Any) -> DiskCache:
    return DiskCache(folder, "test", "; try again", **bounds)


def test_a_result_comes_back_until_it_is_taken_or_cleared(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "new" / "folder")
    assert cache.get("a.json", parse) is None is cache.take("a.json", parse)
    cache.put("a.json", text(1, 2))
    assert cache.get("a.json", parse) == [1, 2] == cache.take("a.json", parse)
    assert cache.get("a.json", parse) is None and not cache.clear("a.json")
    cache.put("a.json", memoryview(text(3)))
    assert cache.clear("a.json") and not list((tmp_path / "new" / "folder").iterdir())


def test_without_a_folder_there_is_nothing() -> None:
    cache = cache_of(None)
    assert cache.get("a", parse) is None is cache.take("a", parse) is cache.path("a")
    assert not cache.clear("a")
    with pytest.raises(OSError, match="no home"):
        cache.put("a", b"")
    with pytest.raises(OSError, match="no home"):
        cache.update("a", parse, lambda _: b"", "*")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
def test_a_damaged_file_is_set_aside_with_one_warning(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.warns(VkschedWarning, match=r"\[test\] .*a.json is not used: .*; try again"):
        assert cache_of(tmp_path).get("a.json", parse) is None
    assert (tmp_path / "a.damaged").read_bytes() == content
    (tmp_path / "a.json").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_of(tmp_path).get("a.json", parse) is None
    cache_of(tmp_path).put("a.json", text(1))
    assert cache_of(tmp_path).take("a.json", parse) == [1]


def test_a_file_that_is_found_damaged_later_is_set_aside_with_one_warning(tmp_path: Path) -> None:
    cache, error = cache_of(tmp_path), ValueError("too few")
    cache.put("a.json", text(1))
    with pytest.warns(VkschedWarning) as caught:
        cache.set_aside("a.json", text(1), error)
        assert (tmp_path / "a.damaged").read_bytes() == text(1)
        cache.put("a.json", text(2))
        cache.set_aside("a.json", text(1), error)  # another process has replaced it
    message = f"[test] {tmp_path / 'a.json'} is not used: ValueError: too few; it is set aside"
    assert [str(each.message) for each in caught] == [f"{message} as .damaged; try again"]
    assert cache.get("a.json", parse) == [2]
    cache_of(None).set_aside("a.json", text(1), error)


@pytest.mark.parametrize("error", [VkschedError, AssertionError, MemoryError])
def test_all_errors_of_untrusted_data_are_damage(tmp_path: Path, error: type[Exception]) -> None:
    def refused(content: bytes) -> None:
        raise error("refused")

    cache_of(tmp_path).put("a.json", text(1))
    with pytest.warns(VkschedWarning, match=f"{error.__name__}: refused; it is set aside"):
        assert cache_of(tmp_path).get("a.json", refused) is None
    assert (tmp_path / "a.damaged").read_bytes() == text(1)


def test_a_folder_whose_files_cannot_be_read_costs_one_warning(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).mkdir()
    with pytest.warns(VkschedWarning, match="IsADirectoryError|PermissionError") as caught:
        assert cache_of(tmp_path).get("a.json", parse) is None
        assert cache_of(tmp_path).get("b.json", parse) is None
    assert len(caught) == 1


def test_a_file_of_another_version_stays(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    cache.put("a.json", text(1, format=2))
    with pytest.warns(VkschedWarning, match="expected format 1, got 2"):
        assert cache.get("a.json", parse) is None
    assert (tmp_path / "a.json").read_bytes() == text(1, format=2)


def test_updates_at_once_lose_nothing(tmp_path: Path) -> None:
    def add(number: int) -> None:
        cache_of(tmp_path).update(
            "a.json", parse, lambda known: text(*(known or ()), number), "*.json"
        )

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(cache_of(tmp_path).get("a.json", parse) or ()) == [*range(8)]


@needs_posix
def test_files_are_this_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache_of(tmp_path / "new").put("a.json", text(1))
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "a.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "new" / "a.json").chmod(0o602)
    with pytest.warns(VkschedWarning, match="PermissionError: expected a file that is yours alone"):
        assert cache_of(tmp_path / "new").get("a.json", parse) is None
    assert (tmp_path / "new" / "a.json").exists(), "it is not damaged"


@pytest.mark.parametrize("bounds", [{"max_files": 2}, {"max_bytes": 2 * len(text(0))}])
def test_the_oldest_files_are_removed(tmp_path: Path, bounds: dict[str, int]) -> None:
    cache = cache_of(tmp_path, **bounds)
    for number in range(4):
        cache.put(f"{number}.json", text(number))
        os.utime(tmp_path / f"{number}.json", (1000 + number, 1000 + number))
    assert {path.name for path in tmp_path.iterdir()} == {"2.json", "3.json"}
    os.utime(tmp_path / "2.json")
    cache.put("2.json", text(5))
    assert (tmp_path / "3.json").exists(), "the file itself does not count"
    assert cache.update("4.json", parse, lambda _: text(4), "4.*") == []
    assert cache.update("4.json", parse, lambda _: text(4), "*.json") == [tmp_path / "3.json"]


def test_a_full_disk_removes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    cache = cache_of(tmp_path, max_files=1)
    cache.put("a.json", text(1))
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="full"):
        cache.put("b.json", text(2))
    with pytest.raises(OSError, match="full"):
        cache.update("b.json", parse, lambda _: text(2), "*.json")
    assert {path.name for path in tmp_path.iterdir()} - {"lock"} == {"a.json"}
    assert cache.get("a.json", parse) == [1]


@pytest.mark.parametrize("bounds", [{"max_files": 1}, {"max_bytes": 1}])
def test_files_of_other_writers_and_the_lock_are_not_removed(
    tmp_path: Path, bounds: dict[str, int]
) -> None:
    for name in ("old", "lock", "ended.tmp", "under_way.tmp"):
        (tmp_path / name).write_bytes(b"longer")
        os.utime(tmp_path / name, (1000, 1000))
    os.utime(tmp_path / "under_way.tmp")
    cache_of(tmp_path, **bounds).put("new", b"1", "*")
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "new", "under_way.tmp"}


def test_a_writer_with_a_lock_waits_for_others_and_counts_the_names_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "LOCK_S", 0.05)
    cache = cache_of(tmp_path, max_files=1)
    cache.put("a.old", text(1))
    cache.put("a.json", text(2))
    with disk_cache.locked(tmp_path / "lock"):
        with pytest.raises(OSError, match="another process holds"):
            cache.put("b.json", text(3), "*.*", with_lock=True)
        assert {path.name for path in tmp_path.iterdir()} == {"a.old", "a.json", "lock"}
    cache.put("b.json", text(3), "*.*", with_lock=True)
    assert {path.name for path in tmp_path.iterdir()} == {"b.json", "lock"}
