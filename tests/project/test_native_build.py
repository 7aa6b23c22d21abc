"""native/build.py without a compiler: what an interrupted build leaves is used again, what a failed
one leaves is not.
"""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from vksched.ops.lowering import native_kernels

SCRIPT = Path(__file__).parent.parent.parent / "native" / "build.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("native_build", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build() -> Any:
    return load()


@pytest.mark.parametrize(
    ("system", "expected", "to_get"),
    [("win32", "cmake", "the Vulkan SDK"), ("linux", "cmake, make, g++", "libvulkan-dev")],
)
def test_each_system_is_informed_of_what_it_needs(
    system: str, expected: str, to_get: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysconfig.get_config_vars()  # of this system; Python keeps them from the first call on
    monkeypatch.setattr("sys.platform", system)
    module = load()
    monkeypatch.undo()
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(module.BuildError, match=f"expected {expected.replace('+', '.')} on PATH"):
        module.check_tools()
    assert to_get in module.PACKAGES


def test_a_build_uses_the_processors_there_are(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert build.count_jobs() == 3
    monkeypatch.delattr(build.os, "sched_getaffinity")
    monkeypatch.setattr(build.os, "cpu_count", lambda: 7)
    assert build.count_jobs() == 7


def test_the_key_tells_of_every_source(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "HERE", tmp_path)
    source = tmp_path / "cpu_kernels" / "conv" / "conv.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("int x;")
    key = build.build_key()
    assert build.build_key() == key
    source.write_text("int y;")
    changed = build.build_key()
    source.rename(source.with_name("other.cpp"))
    assert len({key, changed, build.build_key()}) == 3


def test_licences_of_what_is_compiled_in_come_along(build: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    cmake_dir = site / "pybind11" / "share" / "cmake" / "pybind11"
    cmake_dir.mkdir(parents=True)
    about = site / f"pybind11-{build.PYBIND11}.dist-info" / "licenses"
    about.mkdir(parents=True)
    (about / "LICENSE").write_text("of pybind11")
    (tmp_path / "LICENSE").write_text("of Kompute")
    found = build.licences(tmp_path, cmake_dir)
    texts = {name: path.read_text() for name, path in found.items()}
    assert texts == {"LICENSE.kompute": "of Kompute", "LICENSE.pybind11": "of pybind11"}


class Commands:
    """Stands for cmake and the import of what it made; building may end in some way."""

    def __init__(self, work: Path, build: Any) -> None:
        self.folder = build.build_folder(work)
        self.suffix, self.modules = build.SUFFIX, build.MODULES
        self.end: BaseException | None = None
        self.ends_at = "--build"
        self.compiled = 0
        self.imported: list[str] = []

    def __call__(self, command: list[str], to_do: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if "-c" in command:
            self.imported.append(command[-1])
        elif "--build" in command:
            self.make()
        if self.end is not None and self.ends_at in command:
            raise self.end

    def make(self) -> None:
        built = self.folder / "modules" / "vksched_native"
        if not built.exists():
            self.compiled += 1
            built.mkdir(parents=True)
            for module in self.modules:
                (built / f"{module}{self.suffix}").write_text(f"{module} {self.compiled}")


@pytest.fixture
def commands(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    for name in build.CMAKE_READS:
        monkeypatch.delenv(name, raising=False)
    commands = Commands(tmp_path / "work", build)
    monkeypatch.setattr(build, "call", commands)
    monkeypatch.setattr(build, "check_tools", lambda: None)
    monkeypatch.setattr(build, "get_kp", lambda work: work / "kp")
    monkeypatch.setattr(build, "get_pybind11", lambda work: work / "pybind11")
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    return commands


@pytest.mark.parametrize(
    ("changes", "compiled"),
    [({}, 1), ({"CXXFLAGS": "-O1"}, 2), ({"CXX": "another"}, 2), ({"--force": ""}, 2)],
)
def test_a_build_goes_on_where_it_was_interrupted(
    changes: dict[str, str],
    compiled: int,
    build: Any,
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["--work", str(tmp_path / "work")]
    commands.end = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        build.main(arguments)
    commands.end = None
    for name, value in changes.items():
        if name.startswith("-"):
            arguments.append(name)
        else:
            monkeypatch.setenv(name, value)
    assert build.main(arguments) == 0
    assert commands.compiled == compiled
    package = tmp_path / "site" / "vksched_native"
    assert (package / f"cpu_kernels{build.SUFFIX}").read_text() == f"cpu_kernels {compiled}"
    for module in ("kp", "companion", "cpu_kernels"):
        assert f"vksched_native.{module}" in commands.imported[-1]
    assert not commands.folder.exists()  # whole: no later build takes a part of it


@pytest.mark.parametrize("ends_at", ["--build", "-c"])
def test_what_fails_replaces_nothing_and_is_built_anew(
    ends_at: str,
    build: Any,
    commands: Commands,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands.ends_at = ends_at
    arguments = ["--work", str(tmp_path / "work"), "--force"]
    assert build.main(arguments) == 0
    commands.end = build.BuildError("it broke")
    assert build.main(arguments) == 1
    assert "it broke" in capsys.readouterr().err
    package = tmp_path / "site" / "vksched_native"
    assert (package / f"kp{build.SUFFIX}").read_text() == "kp 1"
    commands.end = None
    assert build.main(arguments[:2]) == 0  # what is there is current
    assert commands.compiled == 2
    (package / "stamp.json").unlink()
    assert build.main(arguments[:2]) == 0
    assert commands.compiled == 3


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "quantized/quant_matmul.hpp",
            f"QUANT_LAYOUT_VERSION = {native_kernels.QUANT_LAYOUT_VERSION};",
        ),
        ("program/program.cpp", f'm.attr("program_version") = {native_kernels.PROGRAM_VERSION};'),
    ],
)
def test_sources_have_the_versions_that_are_asked_for(source: str, line: str) -> None:
    """Of modules of other versions nothing is used, so no other test would fail."""
    assert line in (SCRIPT.parent / "cpu_kernels" / source).read_text()


def test_what_reads_pybind11_is_in_the_unity_build() -> None:
    """Compiling its functions takes a file of its own three seconds, loops alone less."""
    lists = (SCRIPT.parent / "CMakeLists.txt").read_text()
    groups = "".join(re.findall(r"set_source_files_properties\((.*?)PROPERTIES", lists, re.S))
    reads, others = set(), set()
    for path in (SCRIPT.parent / "cpu_kernels").rglob("*.cpp"):
        reading = re.search(r"arrays\.hpp|pybind11", path.read_text())
        (reads if reading else others).add(path.relative_to(SCRIPT.parent).as_posix())
    assert reads == set(groups.split())
    assert others and all(name in lists for name in others)
