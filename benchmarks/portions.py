"""Measures cases of `vksched bench` in portions, each in a process of its own.

A run that was stopped goes on where it was when it is started again. A portion that fails costs no
other.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from results import EXTRAS, read  # beside this file

PORTION = 6
"""Cases measured by one process."""
LAST_FACT = {"overhead": "a trivial run", "models": "{}: a run, beside its kernels"}
"""What a suite measures behind its cases."""


@dataclass
class Run:
    """A run of all suites in portions, each in a process of its own.

    folder: where what was measured lies until all is there. again: whether what lies there is
    measured anew.
    """

    folder: Path
    options: list[str]
    under: list[str]
    again: bool
    unfinished: int = 0

    def results(self) -> list[Path]:
        """Returns the files with what was measured so far, the oldest first."""
        return sorted(self.folder.glob("*.json"))

    def suite(
        self, suite: str, device: str, names: Sequence[str], more: Sequence[str] = ()
    ) -> None:
        """Measures these cases on one device, but for those that are there already. more: options
        of these cases.
        """
        left = list(names) if self.again else self._left(suite, device, names)
        for start in range(0, len(left), PORTION):
            part = left[start : start + PORTION]
            command = ["-m", "vksched", "bench", "--suite", suite, *self.options, *more]
            command += ["--devices", device, "--case", ",".join(part)] if device else []
            self._call([*command, "--output", str(self._file())])
            self.unfinished += len(self._left(suite, device, part))

    def extra(self, key: str, *options: str) -> None:
        """Measures with another script of this folder."""
        script = Path(__file__).parent / EXTRAS[key]
        known = any(key in json.loads(path.read_text("utf-8")) for path in self.results())
        if not script.exists() or (known and not self.again):
            return
        said = self._call([str(script), "--json", *options])
        if said is None:
            self.unfinished += 1
        else:
            self._file().write_text(json.dumps({key: json.loads(said)}), "utf-8")

    def _left(self, suite: str, device: str, names: Sequence[str]) -> list[str]:
        """Returns the cases that are not measured yet."""
        report, _ = read(self.results())
        done = {result.spec.name for result in report.results_of(device)}
        facts = {fact.name for fact in report.facts if fact.device == (device or "planner")}
        if suite == "planning":
            return [] if facts else list(names)
        last = LAST_FACT.get(suite)
        return [n for n in names if n not in done or (last and last.format(n) not in facts)]

    def _file(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{time.time_ns()}.json"

    def _call(self, command: Sequence[str]) -> str | None:
        """Returns what a Python program says; None where it fails."""
        whole = [*self.under, sys.executable, *command]
        click.echo(shlex.join(whole), err=True)
        done = subprocess.run(whole, stdout=subprocess.PIPE, encoding="utf-8")
        if done.returncode:
            click.echo(f"exit code {done.returncode}; what it measured before counts", err=True)
        return done.stdout if done.returncode == 0 else None
