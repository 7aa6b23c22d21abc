"""Run the steps of the set-up: those that do not wait for each other at the same time.

    system packages -> .venv -> Python packages -> shaders, ...      each starts as soon as
                            `-> native modules                       what it needs has ended

A step needs others (they ended well) and comes after others (they ended, well or not). One that
fails stops nothing but those that need it. Each step writes a log of its own.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from setup_base import Outcome, Setup, SetupError

LOG_TAIL_LINES = 40
PROGRESS_BYTES = 4096
SHOWN_CHARS = 48
# make's [ 35%], ninja's [12/40], and "120 of 944".
PROGRESS = re.compile(r"\[ *(\d+%)\]|\[(\d+)/(\d+)\]|\b(\d+) of (\d+)\b")


@dataclass(frozen=True)
class Step:
    """One step: a key over its inputs, whether its results are there, the work, what it awaits."""

    name: str
    key: Callable[[Setup], str]
    there: Callable[[Setup], bool]
    run: Callable[[Setup], Outcome]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A step that failed, why, and where its log is."""

    step: Step
    error: SetupError
    log: Path


class Reporter:
    """Tells what ended, and now and then what goes on: in one line that changes, or in new ones."""

    def __init__(self, count: int, out: TextIO, every_s: float | None = None):
        self._count, self._out = count, out
        self._rewrites = out.isatty()
        self.every_s = every_s or (0.5 if self._rewrites else 15.0)
        self._start = time.monotonic()
        self._ended = 0

    def ended(self, name: str, text: str) -> None:
        self._ended += 1
        self._write(f"[set-up {self._ended}/{self._count}] {name}: {hide_hosts(text)}\n")

    def going_on(self, running: dict[str, Path]) -> None:
        """Say how far each of the running steps is, by the end of its log."""
        seconds = int(time.monotonic() - self._start)
        parts = [f"{name} {progress(tail(log))}".rstrip() for name, log in running.items()]
        line = f"[set-up {seconds // 60}:{seconds % 60:02d}] " + "; ".join(parts)
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[K{line[:width]}")
            self._out.flush()
        else:
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}" if self._rewrites else text)
        self._out.flush()


def tail(log: Path) -> str:
    """The end of a log that may still grow."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - PROGRESS_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def progress(text: str) -> str:
    """How far a step is: the last count that it printed, else its last line."""
    counts = list(PROGRESS.finditer(text))
    if counts:
        percent, *numbers = counts[-1].groups()
        return percent or " of ".join(number for number in numbers if number)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = hide_hosts(lines[-1]) if lines else ""
    return f"({shown[:SHOWN_CHARS]}{'...' if len(shown) > SHOWN_CHARS else ''})" if shown else ""


def hide_hosts(text: str) -> str:
    """Leave out the hosts of addresses: one of a package index may have a password in it."""
    return re.sub(r"://[^/\s'\"]+", "://...", text)


def steps_to_run(setup: Setup, steps: Iterable[Step]) -> list[Step]:
    """The steps whose stamp differs from their key, or whose results are gone.

    A new .venv takes the results of all later steps with it.
    """
    todo = [s for s in steps if setup.stamps.get(s.name) != s.key(setup) or not s.there(setup)]
    names = [step.name for step in todo]
    return [s for s in steps if s in todo or ".venv" in names]


def log_name(step: Step) -> str:
    return re.sub(r"\W+", "-", step.name).strip("-") + ".log"


def run_step(setup: Setup, step: Step, log: Path) -> Outcome:
    """Run one step with its output in a log, in a thread of its own."""
    with open(log, "wb") as file:
        return step.run(dataclasses.replace(setup, log=file))


def run_steps(setup: Setup, steps: Iterable[Step], logs: Path, reporter: Reporter) -> list[Failure]:
    """Run what is to be done, each step as soon as it may; returns the failures."""
    waiting = steps_to_run(setup, steps)
    for step in waiting:  # forgotten until they have ended well, whatever ends them
        setup.stamps.pop(step.name, None)
    setup.write_stamps()
    failures: list[Failure] = []
    unmet: set[str] = set()  # what failed, or needs what failed
    running: dict[Future[Outcome], tuple[Step, float]] = {}
    pool = ThreadPoolExecutor(max(1, len(waiting)))
    try:
        while waiting or running:
            for step in list(waiting):
                if unmet & set(step.needs):
                    waiting.remove(step)
                    unmet.add(step.name)
                    reporter.ended(step.name, "left out, as it needs what failed")
            names = {s.name for s in waiting} | {s.name for s, _ in running.values()}
            for step in [s for s in waiting if not names & {*s.needs, *s.after}]:
                waiting.remove(step)
                future = pool.submit(run_step, setup, step, logs / log_name(step))
                running[future] = (step, time.monotonic())
            done, _ = wait(running, reporter.every_s, FIRST_COMPLETED)
            if not done and running:
                reporter.going_on({s.name: logs / log_name(s) for s, _ in running.values()})
            for future in done:
                step, start = running.pop(future)
                try:
                    outcome = future.result()
                except SetupError as error:
                    failures.append(Failure(step, error, logs / log_name(step)))
                    unmet.add(step.name)
                    reporter.ended(step.name, f"failed: {error.what}")
                    continue
                remark = f", {outcome.remark}" if outcome.remark else ""
                reporter.ended(step.name, f"{time.monotonic() - start:.1f} s{remark}")
                if outcome.whole:
                    # After the work: a new venv or driver changes what the key looks at.
                    setup.stamps[step.name] = step.key(setup)
                    setup.write_stamps()
    except BaseException:
        for step, _ in running.values():
            reporter.ended(step.name, "interrupted")
        setup.commands.stop()
        raise
    finally:
        pool.shutdown()
    return failures


def failure_message(failure: Failure, root: Path) -> str:
    """The end of the log when it helps, what failed, what to do."""
    lines = [""]
    if failure.error.show_log:
        lines += failure.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        lines += ["", f"set-up failed (the whole log: {os.path.relpath(failure.log, root)})"]
    else:
        lines += ["set-up stopped"]
    lines += [f"  step:  {failure.step.name}", f"  what:  {failure.error.what}"]
    return hide_hosts("\n".join([*lines, f"  to do: {failure.error.to_do}"]))


def print_failures(failures: list[Failure], root: Path) -> None:
    for failure in failures:
        print(failure_message(failure, root), file=sys.stderr)
