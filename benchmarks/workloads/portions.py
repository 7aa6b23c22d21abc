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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import click

from vksched.common.package_code import PACKAGE
from vksched.ops.lowering import native_kernels
from vksched.runtime.vulkan.device_probe import list_devices

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from results import EXTRAS, read

BENCHMARKS = Path(__file__).resolve().parents[1]
BUILD = BENCHMARKS.parent / "build"
PORTION = 6
"""Cases measured by one process."""
LAST_FACT = {"overhead": "a trivial run", "models": "{}: a run, beside its kernels"}
"""What a suite measures behind its cases."""
Command = Callable[..., None]
ABOUT = "measured-by"
"""The file that tells what measured, beside the results."""


def code_and_drivers() -> str:
    """Return the versions behind figures: a hash of the package and native loops, and drivers."""
    digest = sha256()
    native = [Path(native_kernels.native.__file__)] if native_kernels.native else []
    for path in (*sorted(PACKAGE.rglob("*.*")), *native):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path}\0".encode() + path.read_bytes())
    drivers = [f"{info.name}: {info.label}, {info.driver}" for info in list_devices()]
    return "\n".join((digest.hexdigest(), *drivers))


def run_options(folder: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of all scripts with --run. folder: folder in
    build/ for the measurements of a run.
    """
    note = "With --run, as of vksched bench"
    options = (
        click.option("--run", "wanted", is_flag=True, help="Measure first, or go on with it."),
        click.option("--devices", help=f"{note}; all there are when not given."),
        click.option("--baseline-python", "pythons", multiple=True, help=f"{note}."),
        click.option(
            "--time-budget", default=1.0, show_default=True, help="With --run: seconds per case."
        ),
        click.option(
            "--work",
            default=BUILD / folder,
            type=click.Path(path_type=Path),
            help="Where a run keeps what is measured until it is complete.",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def bench_options(baselines: Sequence[str], budget: float, pythons: Sequence[str]) -> list[str]:
    """Return the options of `vksched bench` that all portions of a run have. baselines: all there
    are where none is named.
    """
    found = [word for python in pythons for word in ("--baseline-python", python)]
    found += ["--baseline-dir", str(BENCHMARKS / "baselines")]
    return ["--baselines", *baselines, "--time-budget", str(budget), *found]


def devices_of(names: str | None) -> list[str]:
    """Return the devices that --devices names, or all there are."""
    if names:
        return names.split(",")
    return [info.name for info in list_devices() if info.usable and not info.duplicate_of]


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
        """Return the files with what was measured so far, the oldest first."""
        return sorted(self.folder.glob("[0-9]*.json"))

    def require_same(self) -> None:
        """Notes what measures, where nothing is measured yet.

        Raises:
            click.ClickException: what is there is of other code, drivers or options.
        """
        about, now = self.folder / ABOUT, "\n".join((code_and_drivers(), *self.options))
        if not self.results():
            self.folder.mkdir(parents=True, exist_ok=True)
            about.write_text(now, "utf-8")
        elif not about.exists() or about.read_text("utf-8") != now:
            raise click.ClickException(
                f"expected figures of this code, these drivers and options in {self.folder}, got "
                "others; remove that folder, or give another one by --work"
            )

    def remove(self) -> None:
        """Remove what was measured, and its folder where nothing else is in it."""
        for path in (*self.results(), self.folder / ABOUT):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def suite(
        self, suite: str, device: str, names: Sequence[str], more: Sequence[str] = ()
    ) -> None:
        """Measures these cases on one device, but for those that are there already. more: options
        of these cases.
        """
        left = list(names) if self.again else self._left(suite, device, names)
        for start in range(0, len(left), PORTION):
            part = left[start : start + PORTION]
            command = ["-m", "vksched", "bench", "--suite", suite, *more]
            if suite == "planning":
                command += ["--suite-dir", str(BENCHMARKS / "suites")]
            else:
                command += self.options
            command += ["--devices", device, "--case", ",".join(part)] if device else []
            self._call([*command, "--output", str(self._file())])
            self.unfinished += len(self._left(suite, device, part))

    def extra(self, key: str, *options: str) -> None:
        """Measures with another script of this folder."""
        script = Path(__file__).parent / EXTRAS[key]
        known = any(key in json.loads(path.read_text("utf-8")) for path in self.results())
        if not script.exists() or (known and not self.again):
            return
        printed = self._call([str(script), "--json", *options])
        if printed is None:
            self.unfinished += 1
        else:
            self._file().write_text(json.dumps({key: json.loads(printed)}), "utf-8")

    def _left(self, suite: str, device: str, names: Sequence[str]) -> list[str]:
        """Return the cases that are not measured yet."""
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
        """Return the output of a Python program; None if it fails."""
        whole = [*self.under, sys.executable, *command]
        click.echo(shlex.join(whole), err=True)
        done = subprocess.run(whole, stdout=subprocess.PIPE, encoding="utf-8")
        if done.returncode:
            click.echo(f"exit code {done.returncode}; what it measured before counts", err=True)
        return done.stdout if done.returncode == 0 else None
