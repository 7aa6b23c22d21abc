"""What the tuner keeps on disk: round trips, damage, other drivers, many writers."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from conftest import needs_posix

from vksched.common.user_warning import VkschedWarning
from vksched.storage import disk_cache
from vksched.storage.cache_folder import default_folder
from vksched.storage.crash_marker import CrashMarker
from vksched.topology.tuned_variants import TunedVariants
from vksched.tuning.device_cache import MAX_FILES, Identity
from vksched.tuning.variant_cache import TuningResult, VariantCache, choices

DEVICE = Identity("00ff", "driver 1.2", "card")
ONE = TuningResult("op f[1]", "b", "a", {"a": 2e-3, "b": 1e-3}, {"c": "wrong"}, "1234")
TWO = TuningResult("op f[2]", "a", "a", {"a": 1e-3, "b": 2e-3}, {}, "1234")


def file_of(store: VariantCache, device: Identity) -> Path:
    path = store.path(device)
    assert path is not None
    return path


def file_text(key: str = "op f[1]", seconds: str = "1", **more: str) -> str:
    """A file with one result, some of it as asked."""
    entry = {"best": "a", "static": "a", "seconds": {"a": "SECONDS"}, "dropped": {}, "shaders": ""}
    data = {"format": 2, "driver": "driver 1.2", "calls": {key: {**entry, **more}}}
    return json.dumps(data).replace('"SECONDS"', seconds)


def test_results_come_back_and_are_added_to(tmp_path: Path) -> None:
    store = VariantCache(tmp_path)
    assert store.load(DEVICE) == {} and store.add(DEVICE, [])
    assert store.add(DEVICE, [ONE]) and store.add(DEVICE, [TWO])
    assert VariantCache(tmp_path).load(DEVICE) == {ONE.key: ONE, TWO.key: TWO}
    again = replace(ONE, best="a")
    assert store.add(DEVICE, [again]) and store.load(DEVICE)[ONE.key] == again
    assert choices(store.load(DEVICE).values()) == TunedVariants({"op f[1]": "a", "op f[2]": "a"})
    assert {p.name for p in tmp_path.glob("*/*")} == {DEVICE.file_name, "lock"}
    assert store.clear(DEVICE) and not store.clear(DEVICE)
    assert store.load(DEVICE) == {}


def test_devices_have_files_of_their_own(tmp_path: Path) -> None:
    store, other = VariantCache(tmp_path), Identity("", "driver 1.2", "card/without uuid")
    assert file_of(store, other).parent == store.folder == tmp_path / "tuned"
    store.add(DEVICE, [ONE])
    assert store.load(other) == {}


def test_drivers_of_one_device_leave_each_other_alone(tmp_path: Path) -> None:
    store, other = VariantCache(tmp_path), replace(DEVICE, uuid="00ff-0")
    drivers = [replace(DEVICE, driver=f"driver {number}") for number in range(MAX_FILES)]
    store.add(other, [ONE])
    os.utime(file_of(store, other), (0, 0))
    for age, each in enumerate(drivers):
        assert store.add(each, [ONE])
        os.utime(file_of(store, each), (1000 - age, 1000 - age))
    assert all(store.load(each) for each in drivers)
    store.add(DEVICE, [ONE])
    assert [each for each in drivers if not store.load(each)] == drivers[-1:], "the oldest"
    assert store.load(DEVICE) and store.load(other)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"format": 0}', "expected format 2, got 0"),
        ('{"format": 2, "driver": "driver 1.3", "calls": {}}', "expected the driver driver 1.2"),
        ('{"format": 2, "driver": "driver 1.2", "calls": []}', "AttributeError"),
        ('{"format": 2, "driver": "driver 1.2", "calls": {"op": {}}}', "KeyError"),
        (file_text(seconds="0"), "ValueError: no times of 'a'"),
        (file_text(seconds="9" * 400), "OverflowError"),
        (file_text("op f[6" + "4" * 5000 + "]"), "ValueError"),
        ("[" * 200_000, "RecursionError"),
    ],
)
def test_file_that_cannot_be_used_costs_one_warning(tmp_path: Path, text: str, why: str) -> None:
    store = VariantCache(tmp_path)
    (tmp_path / "tuned").mkdir()
    file_of(store, DEVICE).write_text(text)
    with pytest.warns(VkschedWarning, match=why):
        assert store.load(DEVICE) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VariantCache(tmp_path).load(DEVICE) == {}, "told once"
        assert store.add(DEVICE, [ONE]), "and replaced"
    assert store.load(DEVICE) == {ONE.key: ONE}


def test_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    store = VariantCache(file)  # root may write into every folder, not below a file
    with pytest.warns(VkschedWarning, match="not cached: .*try VKSCHED_CACHE"):
        assert not store.add(DEVICE, [ONE])
    with pytest.warns(VkschedWarning, match="NotADirectoryError"):
        assert store.load(DEVICE) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.add(DEVICE, [ONE]), "told once"


def test_key_that_is_none_is_like_no_other(tmp_path: Path) -> None:
    """It is read as text: no size is missing from it."""
    store = VariantCache(tmp_path)
    (tmp_path / "tuned").mkdir()
    for key in ("op f[64,,64]", "op f[64,6\u0663]", "op f[,]"):
        file_of(store, DEVICE).write_text(file_text(key))
        assert choices(store.load(DEVICE).values()).of_like("op f[64,64]") is None


def test_user_without_a_home_has_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("VKSCHED_CACHE", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", fail)
    store = VariantCache()
    assert store.folder is None and store.path(DEVICE) is None
    assert (
        store.load(DEVICE) == {}
        and not store.clear(DEVICE)
        and store.crashed_variants(DEVICE) == {}
    )
    with pytest.warns(VkschedWarning, match="not cached: the user has no home"):
        assert not store.add(DEVICE, [ONE])
    marker = CrashMarker(store.path(DEVICE))
    marker.begin("op f[1]", "a", "")
    marker.close(failed=True)


@needs_posix
def test_this_user_alone_reads_files(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        VariantCache(tmp_path).add(DEVICE, [ONE])
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.glob("tuned/*")] == [0o600] * 2


@needs_posix
def test_lock_is_released_whatever_children_hold(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    with disk_cache.locked(tmp_path / "tuned" / "lock"):
        copies = [os.dup(int(fd)) for fd in os.listdir("/dev/fd") if is_lock(fd)]
    try:  # as a forked child has them
        assert copies and VariantCache(tmp_path).add(DEVICE, [ONE])
    finally:
        for each in copies:
            os.close(each)


def is_lock(fd: str) -> bool:
    try:
        return os.readlink(f"/dev/fd/{fd}").endswith("/tuned/lock")
    except OSError:
        return False


def test_lock_that_nobody_gives_back_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "LOCK_S", 0.05)
    (tmp_path / "tuned").mkdir()
    with (
        disk_cache.locked(tmp_path / "tuned" / "lock"),
        pytest.warns(VkschedWarning, match="not cached: another process holds .*lock"),
    ):
        assert not VariantCache(tmp_path).add(DEVICE, [ONE])
    assert VariantCache(tmp_path).add(DEVICE, [ONE])


def test_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    assert default_folder() == tmp_path and VariantCache().folder == tmp_path / "tuned"
    monkeypatch.delenv("VKSCHED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert default_folder() == tmp_path / "user" / "vksched"


def add_some(folder: Path, first: int) -> None:
    """In a process of its own."""
    for number in range(first, first + 5):
        VariantCache(folder).add(DEVICE, [replace(ONE, key=f"op f[{number}]")])


def test_file_that_another_process_has_open_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: who reads a file keeps it from being replaced, and the reverse."""
    store, left = VariantCache(tmp_path), [3]
    store.add(DEVICE, [ONE])

    def busy(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: object, **more: object) -> object:
            left[0] -= 1
            if left[0] >= 0:
                error = PermissionError(13, "Access is denied")
                error.winerror = 5  # type: ignore[attr-defined]
                raise error
            return call(*args, **more)

        return called

    monkeypatch.setattr(os, "replace", busy(os.replace))
    assert store.add(DEVICE, [TWO]) and left == [-1]
    monkeypatch.setattr(disk_cache, "_read_own", busy(disk_cache._read_own))
    left[0] = 3
    assert store.load(DEVICE).keys() == {ONE.key, TWO.key} and left == [-1]
    left[0] = 1000
    monkeypatch.setattr(disk_cache, "LOCK_S", 0.05)
    with pytest.warns(VkschedWarning, match="PermissionError"):
        assert store.load(DEVICE) == {}, "but not for ever"


def test_file_that_may_not_be_written_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def refuse(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(VkschedWarning, match="not cached: .*Permission denied"):
        assert not VariantCache(tmp_path).add(DEVICE, [ONE])
    assert calls == 1


def test_file_has_the_same_bytes_on_every_system(tmp_path: Path) -> None:
    store = VariantCache(tmp_path)
    store.add(DEVICE, [ONE])
    lines = [
        "{",
        ' "format": 2,',
        ' "uuid": "00ff",',
        ' "driver": "driver 1.2",',
        ' "label": "card",',
        ' "limits": "",',
        ' "calls": {',
        '  "op f[1]": {',
        '   "best": "b",',
        '   "static": "a",',
        '   "seconds": {',
        '    "a": 0.002,',
        '    "b": 0.001',
        "   },",
        '   "dropped": {',
        '    "c": "wrong"',
        "   },",
        '   "shaders": "1234"',
        "  }",
        " }",
        "}",
    ]
    assert file_of(store, DEVICE).read_bytes() == "\n".join(lines).encode()


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    firsts = range(0, 10, 5)
    processes = [context.Process(target=add_some, args=(tmp_path, first)) for first in firsts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert VariantCache(tmp_path).load(DEVICE).keys() == {f"op f[{n}]" for n in range(10)}


def test_writer_that_dies_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VariantCache(tmp_path)
    store.add(DEVICE, [ONE])

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(VkschedWarning, match="no space left"):
        assert not store.add(DEVICE, [TWO])
    assert store.load(DEVICE) == {ONE.key: ONE}
    assert not list(tmp_path.glob("*/*.tmp"))
    assert json.loads(file_of(store, DEVICE).read_text())["label"] == "card"
