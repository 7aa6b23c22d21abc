"""The folders of benchmarks/, whose modules import each other by name."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FOLDERS = [BENCHMARKS / name for name in ("overheads", "report", "schedules", "workloads")]


def add_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test import each benchmark by its name."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
