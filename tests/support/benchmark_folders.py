"""The folders of benchmarks/, whose modules import each other by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BASELINES, SUITES = BENCHMARKS / "baselines", BENCHMARKS / "suites"
FOLDERS = [BENCHMARKS / name for name in ("overheads", "report", "schedules", "workloads")]
"""Of the suites a test finds the modules without `add_benchmarks`."""


def add_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test import each benchmark by its name."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))


def import_baseline(name: str) -> ModuleType:
    """Import a file of benchmarks/baselines as a module of the package's baselines."""
    whole = f"vksched.bench.baselines.{name}"
    spec = importlib.util.spec_from_file_location(whole, BASELINES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[whole] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
