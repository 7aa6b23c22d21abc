"""`vksched top`: once, as JSON, and live in a terminal of 80 x 24, with a real run going on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import vulkan_names
from monitored import ROOT, wait_until, working

from vksched.monitor.client import Client

needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
NAMES = [*vulkan_names()[:1], "cpu"]


def top(runtime_home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(runtime_home),
        "PYTHONUTF8": "1",
        "COLUMNS": "80",
    }
    command = [sys.executable, "-m", "vksched", "top", *options]
    return subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", timeout=60)


def test_once_prints_what_goes_on(runtime_home: Path) -> None:
    with working(runtime_home, NAMES) as process:
        done = top(runtime_home, "--once")
        assert (done.returncode, done.stderr) == (0, "")
        for part in ("1 process ", str(process.pid), "runs/s", *NAMES):
            assert part in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert "\x1b" not in done.stdout and "q quit" not in done.stdout


def test_json_has_it_all(runtime_home: Path) -> None:
    with working(runtime_home, NAMES) as process:
        done = top(runtime_home, "--json", "--pid", str(process.pid))
        (data,) = json.loads(done.stdout)
        (sched,) = data["schedulers"]
        assert data["pid"] == process.pid and sched["runs"] > 0
        assert {d["name"] for d in sched["devices"]} == set(NAMES)


def test_without_processes_there_is_nothing_to_print(runtime_home: Path) -> None:
    assert json.loads(top(runtime_home, "--json").stdout) == []
    done = top(runtime_home, "--once")
    assert done.returncode == 0 and "No process of this user" in done.stdout


def test_a_process_that_is_not_there_is_one_line_on_stderr(runtime_home: Path) -> None:
    done = top(runtime_home, "--once", "--pid", "999999999")
    assert done.returncode == 1 and done.stdout == ""
    assert "try VKSCHED_MONITOR=1" in done.stderr and done.stderr.count("\n") == 1


def test_without_a_terminal_it_says_what_to_try(runtime_home: Path) -> None:
    done = top(runtime_home)
    assert done.returncode == 1 and "try --once or --json" in done.stderr


Tmux = Callable[..., str]


@contextmanager
def in_tmux(runtime_home: Path, *options: str) -> Iterator[Tmux]:
    """A terminal of 80 x 24 with `vksched top` in it."""
    socket = str(runtime_home / "tmux")
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(runtime_home),
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "80",  # as some shells export it, of the terminal that they began in
        "LINES": "24",
    }

    def tmux(*words: str) -> str:
        command = ["tmux", "-S", socket, "-f", "/dev/null", *words]
        done = subprocess.run(command, env=environ, capture_output=True, encoding="utf-8")
        return done.stdout

    command = f"{sys.executable} -m vksched top {' '.join(options)}; echo ended $?; sleep 60"
    tmux("new-session", "-d", "-x", "80", "-y", "24", "-s", "top", command)
    try:
        yield tmux
    finally:
        tmux("kill-server")


def more_lines(pid: int) -> None:
    """Return when a process has told of itself several times more."""
    client, seen = Client(pid), set[float]()
    client.look_for_new()
    while len(seen) < 4:
        client.read(1.0)
        seen.update(process.time_s for process in client.processes())
    client.close()


def screen(tmux: Tmux) -> str:
    return tmux("capture-pane", "-p", "-t", "top")


@needs_tmux
def test_it_lives_in_a_terminal(runtime_home: Path) -> None:
    with working(runtime_home, NAMES) as process, in_tmux(runtime_home) as tmux:

        def shows(*parts: str) -> None:
            wait_until(lambda: all(part in screen(tmux) for part in parts))

        def press(key: str) -> None:
            tmux("send-keys", "-t", "top", key)

        shows("vksched top", f"{process.pid}", "runs/s", *NAMES, "a minute", "s sort: name")
        text = screen(tmux)
        assert len(text.splitlines()) <= 24
        assert "matmul" in text or "idle" in text
        press("s")
        shows("s sort: busy")
        press("?")
        shows("any key leaves it")
        press("x")
        shows("s sort: busy", "a minute")
        press("Down")
        shows(f">{process.pid:>8}")
        press("p")
        shows("PAUSED")
        before = screen(tmux)
        more_lines(process.pid)
        assert screen(tmux) == before
        press("p")
        wait_until(lambda: "PAUSED" not in screen(tmux) and screen(tmux) != before)
        tmux("resize-window", "-t", "top", "-x", "60", "-y", "9")
        wait_until(lambda: len(screen(tmux).splitlines()) <= 9 and "█" in screen(tmux))
        shows(NAMES[0])
        process.kill()
        process.wait()
        shows("No process of this user")
        press("q")
        shows("ended 0")


@needs_tmux
def test_ctrl_c_ends_it_and_the_terminal_is_as_before(runtime_home: Path) -> None:
    with in_tmux(runtime_home) as tmux:
        wait_until(lambda: "No process" in screen(tmux))
        tmux("send-keys", "-t", "top", "C-c")
        wait_until(lambda: "ended 130" in screen(tmux))
        assert "No process" not in screen(tmux), "the screen of before is back"
