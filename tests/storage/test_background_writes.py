"""Files that a thread writes later: in order, once, at the latest at the end of the process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vksched.storage import background_writes
from vksched.storage.background_writes import BackgroundWrites


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> BackgroundWrites:
    monkeypatch.setattr(background_writes, "DELAY_S", 3600.0)
    return BackgroundWrites()


def test_files_are_written_by_another_thread_when_somebody_waits(writes: BackgroundWrites) -> None:
    written: list[tuple[str, int]] = []
    for name in ("a", "b"):
        writes.add(name, lambda name=name: written.append((name, threading.get_ident())))
    assert writes.wait("c") and not written
    assert writes.wait()
    assert [name for name, _ in written] == ["a", "b"]
    assert threading.get_ident() not in {thread for _, thread in written}


def test_without_a_wait_the_delay_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_writes, "DELAY_S", 0.0)
    done = threading.Event()
    BackgroundWrites().add("a", done.set)
    assert done.wait(10)


def test_a_newer_content_replaces_one_that_is_not_written(writes: BackgroundWrites) -> None:
    written: list[int] = []
    for number in range(3):
        writes.add("a", lambda number=number: written.append(number))
    assert writes.wait() and written == [2]
    writes.add("a", lambda: written.append(3))  # by another thread: the first one has ended
    assert writes.wait() and written == [2, 3]


def test_a_file_that_is_added_during_its_write_is_written_again(writes: BackgroundWrites) -> None:
    begun, goes_on, written = threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        assert goes_on.wait(10)
        written.append(0)

    writes.add("a", first)
    assert not writes.wait(limit_s=0) and begun.wait(10)
    writes.add("a", lambda: written.append(1))
    goes_on.set()
    assert writes.wait() and written == [0, 1]


def test_an_error_is_logged_and_the_others_are_written(
    writes: BackgroundWrites, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[str] = []
    writes.add("a", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    writes.add("b", lambda: written.append("b"))
    with caplog.at_level(logging.ERROR):
        assert writes.wait()
    assert written == ["b"] and "a was not written" in caplog.text


@pytest.mark.parametrize("raised", [SystemExit(1), GeneratorExit()])
def test_a_write_that_ends_its_thread_does_not_stop_later_ones(
    writes: BackgroundWrites, raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    written: list[str] = []

    def end() -> None:
        raise raised

    writes.add("a", end)
    assert writes.wait("a")
    writes.add("b", lambda: written.append("b"))
    assert writes.wait("b", 10) and written == ["b"]


def test_files_that_an_ended_thread_has_left_are_written(
    writes: BackgroundWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    written: list[str] = []

    def end() -> None:
        raise SystemExit

    writes.add("a", end)
    writes.add("b", lambda: written.append("b"))
    assert writes.wait("a")
    while writes._thread is not None:  # it ends
        threading.Event().wait(0.01)
    assert writes.wait("b", 10) and written == ["b"]


def test_the_wanted_file_is_written_first(writes: BackgroundWrites) -> None:
    written: list[str] = []
    for name in "abc":
        writes.add(name, lambda name=name: written.append(name))
    assert writes.wait("c") and written[0] == "c"
    assert writes.wait() and written == ["c", "a", "b"]


def test_a_wait_is_bounded(writes: BackgroundWrites) -> None:
    goes_on = threading.Event()
    writes.add("a", lambda: assert_(goes_on.wait(10)))
    assert not writes.wait(limit_s=0.01)
    goes_on.set()
    assert writes.wait("a")


def assert_(value: bool) -> None:
    assert value


AT_EXIT = """
import pathlib, sys
from vksched.storage.background_writes import WRITES
path = pathlib.Path(sys.argv[1])
WRITES.add("a", lambda: path.write_text("whole"))
assert not path.exists()
"""


@pytest.mark.parametrize("how", ["", "sys.exit(3)", "1 / 0"])
def test_the_end_of_a_process_waits_for_its_files(tmp_path: Path, how: str) -> None:
    subprocess.run(
        [sys.executable, "-c", AT_EXIT + how, str(tmp_path / "a")], stderr=subprocess.DEVNULL
    )
    assert (tmp_path / "a").read_text() == "whole"


NEVER = """
import sys, threading
from vksched.storage import background_writes
background_writes.WRITES.wait.__func__.__defaults__ = (None, 0.05)
background_writes.WRITES.add("a", threading.Event().wait)
"""


def test_a_write_that_hangs_does_not_keep_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", NEVER], timeout=60).returncode == 0


FORKED = """
import os, pathlib, sys
from vksched.storage.background_writes import WRITES
folder = pathlib.Path(sys.argv[1])
WRITES.add("a", lambda: (folder / f"by {os.getpid()}").write_text(""))
child = os.fork()
if child == 0:
    WRITES.add("b", lambda: (folder / "of the child").write_text(""))
    assert WRITES.wait()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
print(os.getpid())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_writes_its_own_files_only(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"by {done.stdout.strip()}", "of the child"}
