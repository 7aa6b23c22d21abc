"""VKSCHED_TRACE: one file for all schedulers of a program, whatever becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import vksched as vs
from vksched.engine.replay.replay_tape import replay_tape

PROGRAM = """
import numpy as np, vksched as vs, os
x = vs.input("x", (4,))
for value in (2.0, 3.0):
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(x * value)
        run(x=np.ones(4, np.float32))
        print(len(run.trace.select("run")))
"""


def run_program(text: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "VKSCHED_TRACE": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_all_schedulers_of_a_program_share_the_file(tmp_path: Path) -> None:
    done = run_program(PROGRAM, tmp_path / "t-%p.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1"]
    (file,) = tmp_path.iterdir()
    tape = vs.load_tape(file)
    assert len(tape.plans) == 2 and [e.name for e in tape.events].count("run") == 2
    assert replay_tape(tape).difference is None


def test_a_scheduler_that_nobody_closes_is_on_the_file(tmp_path: Path) -> None:
    text = 'import vksched as vs; s = vs.Scheduler(["cpu"]); s.compile(vs.zeros((2,)) + 1.0)()'
    assert run_program(text, tmp_path / "t.json").returncode == 0
    assert any(event.name == "run" for event in vs.load_tape(tmp_path / "t.json").events)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    text = PROGRAM + "child = os.fork()\n" + PROGRAM + "if child: os.waitpid(child, 0)\n"
    done = run_program(text, tmp_path / "t-%p.json")
    assert done.returncode == 0, done.stderr
    sizes = [len(vs.load_tape(file).plans) for file in tmp_path.iterdir()]
    assert sorted(sizes) == [2, 4]


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    done = run_program(PROGRAM, tmp_path / "nowhere" / "t.json")
    assert done.returncode == 0 and done.stdout.split() == ["1", "1"]
    assert "cannot write" in done.stderr and "try another VKSCHED_TRACE" in done.stderr
