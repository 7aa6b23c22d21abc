"""What the tests of the set-up share: commands that are not there, a .venv that is none."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import setup_run
from setup_base import Outcome, Setup
from setup_run import Failure, Reporter, Step

MakeCommand = Callable[[str, str], Path]
WHOLE = Outcome()


def stub_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCommand:
    """Make PATH an empty folder, and returns a function that adds a shell command to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return add


def fake_setup(tmp_path: Path) -> Setup:
    """A set-up in an empty folder that has something in place of a venv's Python."""
    setup = Setup(tmp_path / "repo", {"PATH": "/bin:/usr/bin"})
    setup.venv_python.parent.mkdir(parents=True)
    setup.venv_python.write_text("")
    return setup


def run_steps(setup: Setup, steps: list[Step]) -> list[Failure]:
    """Run steps with their logs beside the made-up .venv."""
    logs = setup.root / "logs"
    logs.mkdir(exist_ok=True)
    return setup_run.run_steps(setup, steps, logs, Reporter(len(steps), sys.stdout))


def counting_step(name: str, source: Path, ran: list[str]) -> Step:
    """A step that depends on one file and notes that it ran."""

    def run(_: Setup) -> Outcome:
        ran.append(name)
        return Outcome()

    return Step(name, lambda s: source.read_text(), lambda s: True, run)


def got(folder: Path) -> list[str]:
    """The last word of each command that a stub noted: what was installed."""
    return [line.split()[-1] for line in (folder / "got").read_text().splitlines()]
