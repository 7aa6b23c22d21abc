"""What the tuner keeps on disk: round trips, damage, other drivers, many writers."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from vksched.ops.choices import Choices
from vksched.trace import VkschedWarning
from vksched.tuner.store import Found, Identity, Store, choices, default_folder

DEVICE = Identity("00ff", "driver 1.2", "card")
ONE = Found("op f[1]", "b", "a", {"a": 2e-3, "b": 1e-3}, {"c": "wrong"}, "1234")
TWO = Found("op f[2]", "a", "a", {"a": 1e-3, "b": 2e-3}, {}, "1234")


def test_results_come_back_and_are_added_to(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load(DEVICE) == {} and store.add(DEVICE, [])
    assert store.add(DEVICE, [ONE]) and store.add(DEVICE, [TWO])
    assert Store(tmp_path).load(DEVICE) == {ONE.key: ONE, TWO.key: TWO}
    again = replace(ONE, best="a")
    assert store.add(DEVICE, [again]) and store.load(DEVICE)[ONE.key] == again
    assert choices(store.load(DEVICE).values()) == Choices({"op f[1]": "a", "op f[2]": "a"})
    assert {p.name for p in store.folder.iterdir()} == {"00ff.json", "lock"}
    assert store.clear(DEVICE) and not store.clear(DEVICE)
    assert store.load(DEVICE) == {}


def test_devices_have_files_of_their_own(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Identity("", "driver 1.2", "card/without uuid")
    assert store.path(other).parent == store.folder == tmp_path / "tuned"
    store.add(DEVICE, [ONE])
    assert store.load(other) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"format": 0}', "expected format 1, got 0"),
        ('{"format": 1, "driver": "driver 1.3", "calls": {}}', "expected the driver driver 1.2"),
        ('{"format": 1, "driver": "driver 1.2", "calls": []}', "AttributeError"),
        ('{"format": 1, "driver": "driver 1.2", "calls": {"op": {}}}', "KeyError"),
        (
            '{"format": 1, "driver": "driver 1.2", "calls": {"op": {"best": "a", "static": "a", '
            '"seconds": {"a": 0}, "dropped": {}, "shaders": ""}}}',
            "ValueError: no times of 'a'",
        ),
    ],
)
def test_file_that_cannot_be_used_costs_one_warning(tmp_path: Path, text: str, why: str) -> None:
    store = Store(tmp_path)
    store.folder.mkdir()
    store.path(DEVICE).write_text(text)
    with pytest.warns(VkschedWarning, match=why):
        assert store.load(DEVICE) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path).load(DEVICE) == {}, "told once"
        assert store.add(DEVICE, [ONE]), "and replaced"
    assert store.load(DEVICE) == {ONE.key: ONE}


def test_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    store = Store(file)  # root may write into every folder, not below a file
    with pytest.warns(VkschedWarning, match="not kept: .*try VKSCHED_CACHE"):
        assert not store.add(DEVICE, [ONE])
    with pytest.warns(VkschedWarning, match="NotADirectoryError"):
        assert store.load(DEVICE) == {}


def test_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    assert default_folder() == tmp_path and Store().folder == tmp_path / "tuned"
    monkeypatch.delenv("VKSCHED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert default_folder() == tmp_path / "user" / "vksched"


def add_some(folder: Path, first: int) -> None:
    """In a process of its own."""
    for number in range(first, first + 5):
        Store(folder).add(DEVICE, [replace(ONE, key=f"op f[{number}]")])


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    firsts = range(0, 10, 5)
    processes = [context.Process(target=add_some, args=(tmp_path, first)) for first in firsts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert Store(tmp_path).load(DEVICE).keys() == {f"op f[{n}]" for n in range(10)}


def test_writer_that_dies_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.add(DEVICE, [ONE])

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(VkschedWarning, match="no space left"):
        assert not store.add(DEVICE, [TWO])
    assert store.load(DEVICE) == {ONE.key: ONE}
    assert not list(store.folder.glob("*.tmp"))
    assert json.loads(store.path(DEVICE).read_text())["label"] == "card"
