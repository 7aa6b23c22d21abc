"""Drivers that survived a list are asked without a child, unless anything about them changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_linux
from test_devices import plain_environment

from vksched.runtime.vulkan import binding, driver_probe, driver_probe_cache

__all__ = ["plain_environment"]  # a fixture

CHILD = 'print(\'vksched-devices:\' + \'{"devices": [{"index": 0}], "problem": null}\')'


@dataclass
class Computer:
    """Files of a made-up computer with one driver."""

    folder: Path
    manifest: Path

    def file(self, name: str) -> Path:
        return self.folder / name

    def key(self) -> str | None:
        return driver_probe_cache.cache_key(driver_probe.manifests(), driver_probe._settings())

    def entries(self) -> list[Path]:
        return list((self.folder / "cache" / "drivers").glob("*.json"))


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    for name in ("boot", "links", "loader.so", "native.so", "driver.so", "card0"):
        (tmp_path / name).write_text(name)
    for kind in ("icd.d", "implicit_layer.d", "explicit_layer.d", "loader_settings.d"):
        (tmp_path / "vulkan" / kind).mkdir(parents=True)
    manifest = tmp_path / "vulkan" / "icd.d" / "driver.json"
    manifest.write_text(json.dumps({"ICD": {"library_path": "../../driver.so"}}))
    for name in (*binding.DRIVER_SELECTORS, "XDG_DATA_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(driver_probe_cache, "BOOT", str(tmp_path / "boot"))
    monkeypatch.setattr(driver_probe_cache, "LINKS", str(tmp_path / "links"))
    monkeypatch.setattr(driver_probe_cache, "_loader", lambda: [str(tmp_path / "loader.so")])
    monkeypatch.setattr(driver_probe_cache, "_native", lambda: [str(tmp_path / "native.so")])
    monkeypatch.setattr(
        driver_probe_cache, "_cards", lambda: [p.name for p in tmp_path.glob("card*")]
    )
    return Computer(tmp_path, manifest)


def written(name: str) -> Callable[[Computer], object]:
    """Another content of a file, of as many bytes and with the same times."""

    def change(computer: Computer) -> None:
        about = computer.file(name).stat()
        new = computer.file(f"{name}.new")
        new.write_text(computer.file(name).read_text().swapcase())
        os.utime(new, ns=(about.st_atime_ns, about.st_mtime_ns))
        new.replace(computer.file(name))

    return change


def touched(name: str) -> Callable[[Computer], object]:
    return lambda computer: os.utime(computer.file(name), ns=(1, 1))


CHANGES: dict[str, Callable[[Computer], object]] = {
    "boot": written("boot"),
    "libraries of the system": touched("links"),
    "loader": touched("loader.so"),
    "another loader file": written("loader.so"),
    "native modules": touched("native.so"),
    "library of a driver": touched("driver.so"),
    "another library": written("driver.so"),
    "manifest": touched("vulkan/icd.d/driver.json"),
    "another driver": lambda c: c.file("vulkan/icd.d/b.json").write_text(c.manifest.read_text()),
    "no driver": lambda c: c.manifest.unlink(),
    "a layer": lambda c: c.file("vulkan/implicit_layer.d/a.json").write_text("{}"),
    "a layer to be named": lambda c: c.file("vulkan/explicit_layer.d/a.json").write_text("{}"),
    "the loader's settings": lambda c: c.file("vulkan/loader_settings.d/a.json").write_text("{}"),
    "a card": lambda c: c.file("card1").write_text(""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_has_another_key(computer: Computer, what: str) -> None:
    before = computer.key()
    assert before is not None and before == computer.key()
    CHANGES[what](computer)
    assert computer.key() not in (None, before)


@pytest.mark.parametrize(
    "name", ["VK_LOADER_LAYERS_ENABLE", "LD_PRELOAD", "RADV_DEBUG", "LP_NUM_THREADS", "DISPLAY"]
)
def test_variables_of_drivers_count(
    computer: Computer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = computer.key()
    monkeypatch.setenv(name, "1")
    assert computer.key() not in (None, before)


def test_versions_count_and_terminals_do_not(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = computer.key()
    monkeypatch.setenv("XDG_SESSION_ID", "another")
    monkeypatch.setenv("WINDOWID", "another")
    assert computer.key() == before
    monkeypatch.setattr(driver_probe_cache, "__version__", "another")
    assert computer.key() not in (None, before)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.manifest.write_text("{ not json"),
        lambda c: c.manifest.write_text("{}"),
        lambda c: c.manifest.write_text(json.dumps({"ICD": {"library_path": "libnowhere.so"}})),
        lambda c: c.file("driver.so").unlink(),
        lambda c: c.file("loader.so").unlink(),
        lambda c: c.file("boot").unlink(),  # as on other systems
    ],
)
def test_what_cannot_be_reported_has_no_key(
    computer: Computer, change: Callable[[Computer], object]
) -> None:
    change(computer)
    assert computer.key() is None


def test_libraries_without_a_folder_are_looked_for(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    computer.manifest.write_text(json.dumps({"ICD": {"library_path": "driver.so"}}))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(computer.folder))
    before = computer.key()
    assert before is not None
    os.utime(computer.file("driver.so"), ns=(1, 1))
    assert computer.key() not in (None, before)


class Processes:
    """Processes that ask one after the other, and who asked the drivers in each."""

    def __init__(self, computer: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computer, self.patch = computer, monkeypatch
        self.asked: list[str] = []
        self.here: Callable[[], list[dict[str, Any]]] = lambda: [{"index": 42}]
        in_child = driver_probe.run_child

        def child(code: str, changes: Any) -> Any:
            self.asked.append("child")
            return in_child(code, changes)

        def describe() -> list[dict[str, Any]]:
            self.asked.append("here")
            return self.here()

        monkeypatch.setattr(driver_probe, "run_child", child)
        monkeypatch.setattr(driver_probe, "_CHILD", CHILD)
        monkeypatch.setattr(binding, "available", lambda: None)
        monkeypatch.setattr(binding, "describe_devices", describe)

    def start(self) -> list[str]:
        """Return who asked in a new process."""
        self.asked.clear()
        self.patch.setattr(driver_probe, "_first", {})
        self.answer = driver_probe.ask_drivers()
        return list(self.asked)


@pytest.fixture
def processes(computer: Computer, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(computer, monkeypatch)


def test_a_second_start_needs_no_child(processes: Processes) -> None:
    text = 'import sys; sys.stderr.write("ERROR: /x/y.so: file too short\\n"); '
    processes.patch.setattr(driver_probe, "_CHILD", text + CHILD)
    assert processes.start() == ["child"]
    assert processes.start() == ["here"] == processes.start()
    assert processes.answer.devices == ({"index": 42},)
    assert processes.answer.notes == ("/x/y.so: file too short",), "as the child heard it"
    os.utime(processes.computer.file("driver.so"), ns=(1, 1))
    assert processes.start() == ["child"], "another driver"


def test_a_driver_that_crashes_after_all_does_so_once(processes: Processes) -> None:
    processes.start()

    def crash() -> list[dict[str, Any]]:
        assert not processes.computer.entries(), "it is put back by who lives"
        raise KeyboardInterrupt  # or the end of the process

    processes.here = crash
    with pytest.raises(KeyboardInterrupt):
        processes.start()
    assert processes.asked == ["here"]
    assert processes.start() == ["child"]


def test_drivers_that_fail_in_this_process_are_asked_in_a_child(processes: Processes) -> None:
    processes.start()

    def fail() -> list[dict[str, Any]]:
        raise RuntimeError("out of memory")

    processes.here = fail
    assert processes.start() == ["here", "child"]
    assert processes.answer.devices == ({"index": 0},)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"notes": 7}'])
def test_a_damaged_entry_is_none(processes: Processes, text: str) -> None:
    processes.start()
    (entry,) = processes.computer.entries()
    entry.write_text(text)
    assert processes.start() == ["child"]
    assert processes.start() == ["here"]


def test_no_entry_without_devices_or_a_folder(processes: Processes) -> None:
    processes.patch.setattr(driver_probe, "_CHILD", CHILD.replace('{"index": 0}', ""))
    processes.start()
    assert not processes.answer.devices and not processes.computer.entries()
    processes.patch.setattr(driver_probe, "_CHILD", CHILD)
    processes.computer.file("cache").write_text("a file in its way")
    assert processes.start() == ["child"] == processes.start()
    assert processes.answer.devices == ({"index": 0},)


def test_few_entries_are_retained(processes: Processes) -> None:
    for number in range(driver_probe_cache.MAX_FILES + 3):
        processes.computer.file("boot").write_text(str(number))
        driver_probe_cache.Entry(driver_probe.manifests(), []).put(())
    assert len(processes.computer.entries()) == driver_probe_cache.MAX_FILES


@needs_linux
@pytest.mark.skipif(binding.available() is not None, reason=f"no Vulkan: {binding.available()}")
def test_real_drivers_are_asked_without_a_child(tmp_path: Path) -> None:
    code = (
        "from vksched.runtime.vulkan import device_probe, driver_probe\n"
        "run, children = driver_probe.run_child, []\n"
        "driver_probe.run_child = (\n"
        "    lambda *child: (children.append(1), run(*child))[1]\n)\n"
        "found = [(d.name, d.label) for d in device_probe.list_devices()]\n"
        "print(0, found, len(children))"
    )
    env = {**os.environ, "VKSCHED_CACHE": str(tmp_path)}
    env.pop("VKSCHED_PROBE", None)
    text = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        text.append(done.stdout.strip())
    first, second = text
    assert first[:-1] == second[:-1] and "cpu" in first
    if list((tmp_path / "drivers").glob("*.json")):  # not where a manifest names no library
        assert (first[-1], second[-1]) == ("1", "0")
