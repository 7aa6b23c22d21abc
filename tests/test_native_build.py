"""native/build.py without a compiler: what an interrupted build leaves is used again, what a failed
one leaves is not.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "native" / "build.py"


@pytest.fixture
def build() -> Any:
    spec = importlib.util.spec_from_file_location("native_build", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Commands:
    """Stands for cmake: configures, and builds an object, on which it may end in some way."""

    def __init__(self, work: Path, build: Any) -> None:
        self.made = build.build_folder(work) / "an.o"
        self.end: BaseException | None = None
        self.compiled = 0

    def __call__(self, command: list[str], to_do: str) -> None:
        self.made.parent.mkdir(parents=True, exist_ok=True)
        if "--build" not in command:
            return
        if not self.made.exists():
            self.compiled += 1
            self.made.touch()
        if self.end is not None:
            raise self.end


@pytest.mark.parametrize(
    ("end", "settings", "compiled"),
    [
        ("interrupted", "", 1),
        ("interrupted", "-O1", 2),
        ("failed", "", 2),
    ],
)
def test_a_build_goes_on_where_it_was_interrupted(
    end: str,
    settings: str,
    compiled: int,
    build: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = Commands(tmp_path, build)
    monkeypatch.setattr(build, "call", commands)
    monkeypatch.delenv("CXXFLAGS", raising=False)
    commands.end = KeyboardInterrupt() if end == "interrupted" else build.BuildError("a reason")
    with pytest.raises(type(commands.end)):
        build.compile_modules(tmp_path, tmp_path / "kp", tmp_path / "pybind11")
    if settings:
        monkeypatch.setenv("CXXFLAGS", settings)
    commands.end = None
    modules = build.compile_modules(tmp_path, tmp_path / "kp", tmp_path / "pybind11")
    assert modules == build.build_folder(tmp_path) / "modules"
    assert commands.compiled == compiled
