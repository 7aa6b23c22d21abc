"""The server: whoever connects, whatever they do, no run notices, and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from graphs import SHAPE, source, steps
from monitored import ROOT, wait_until, working

import vksched as vs
from vksched.monitor import server, socket_dir
from vksched.monitor.client import Client
from vksched.monitor.top.snapshot import ProcessNow, decode

X = np.ones(SHAPE, np.float32)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@contextlib.contextmanager
def monitored_run(sched: vs.Scheduler) -> Iterator[vs.CompiledGraph]:
    with sched:
        yield sched.compile(steps(source(), ["a", "b"])[-1])


def monitored() -> vs.Scheduler:
    return vs.Scheduler(["cpu"], monitor=True)


def mine(runtime_home: Path) -> Path:
    return runtime_home / "vksched" / f"{os.getpid()}.sock"


def first_line(own: socket.socket) -> ProcessNow:
    own.settimeout(10)
    text = b""
    while not text.endswith(b"\n"):
        text += own.recv(1 << 16)
    return decode(text.splitlines()[-1])


def one(client: Client) -> ProcessNow:
    (found,) = client.wait_for_all(10)
    return found


def test_the_socket_is_there_as_long_as_a_scheduler_is(runtime_home: Path) -> None:
    assert not mine(runtime_home).exists()
    with monitored_run(monitored()):
        assert stat.S_IMODE(os.lstat(mine(runtime_home)).st_mode) == 0o600
        with monitored_run(monitored()):
            assert mine(runtime_home).exists()
        assert mine(runtime_home).exists()
    assert not mine(runtime_home).exists()
    assert not [t for t in threading.enumerate() if t.name == "vksched-monitor"]


@pytest.mark.parametrize(
    ("variable", "argument", "on"),
    [("1", None, True), ("0", None, False), ("", None, False), ("1", False, False)],
)
def test_the_variable_counts_where_nothing_is_reported(
    runtime_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    argument: bool | None,
    on: bool,
) -> None:
    monkeypatch.setenv("VKSCHED_MONITOR", variable)
    with vs.Scheduler(["cpu"], monitor=argument):
        assert mine(runtime_home).exists() is on


def test_several_schedulers_are_reported_each_by_itself(runtime_home: Path) -> None:
    with monitored_run(monitored()) as run, monitored_run(monitored()):
        for _ in range(3):
            run(x=X)
        client = Client(os.getpid())
        first, second = one(client).schedulers
        client.close()
        assert (first.runs, second.runs) == (3, 0)
        assert first.number < second.number
        assert [d.name for d in first.devices] == ["cpu"]


def test_a_client_that_never_reads_misses_lines_and_is_cut_off(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TICK_S", 0.01)
    monkeypatch.setattr(server, "STUCK_S", 0.5)
    with monitored_run(monitored()) as run, socket_dir.connect(mine(runtime_home)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        served = server._server
        assert served is not None
        wait_until(lambda: served._clients)
        with socket_dir.connect(mine(runtime_home)) as reading:
            first_line(reading)
            seen, end_s = 0, time.monotonic() + 30
            while len(served._clients) > 1:
                assert time.monotonic() < end_s
                run(x=X)
                seen += len(reading.recv(1 << 16))
            assert seen > 0, "the other one went on"
            assert all(len(c.left) < 1 << 18 for c in served._clients.values())


def test_a_client_that_talks_is_cut_off(runtime_home: Path) -> None:
    with monitored_run(monitored()) as run:
        for text in (b"{}\n", b"x" * 100_000, b"\0"):
            with socket_dir.connect(mine(runtime_home)) as talking:
                first_line(talking)
                with contextlib.suppress(OSError):
                    talking.sendall(text)
                with contextlib.suppress(ConnectionResetError):
                    while talking.recv(1 << 16):
                        pass
            run(x=X)
        client = Client(os.getpid())
        wait_until(lambda: client.read(0.1) or one(client).schedulers[0].runs == 3)
        client.close()


def test_more_clients_than_there_is_room_for_are_rejected(runtime_home: Path) -> None:
    with monitored_run(monitored()), contextlib.ExitStack() as stack:
        there = [
            stack.enter_context(socket_dir.connect(mine(runtime_home)))
            for _ in range(server.CLIENTS)
        ]
        for each in there:
            first_line(each)
        with socket_dir.connect(mine(runtime_home)) as late:
            late.settimeout(10)
            assert late.recv(1) == b""
        there[0].close()

        def room() -> bool:
            with socket_dir.connect(mine(runtime_home)) as again:
                again.settimeout(10)
                return again.recv(1) == b"{"

        wait_until(room)


def test_clients_that_come_and_go_leave_no_files_open(runtime_home: Path) -> None:
    files = Path("/proc/self/fd")
    if not files.exists():
        pytest.skip("only Linux tells which files are open")
    with monitored_run(monitored()):
        served = server._server
        assert served is not None
        with socket_dir.connect(mine(runtime_home)) as own:
            first_line(own)  # the thread has opened what it needs
        wait_until(lambda: not served._clients)
        before = len(list(files.iterdir()))
        for number in range(60):
            with socket_dir.connect(mine(runtime_home)) as own:
                if number % 2:
                    first_line(own)
        wait_until(lambda: not served._clients and len(list(files.iterdir())) <= before)


def test_a_process_without_files_left_asks_once_a_tick_and_goes_on(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TICK_S", 0.05)
    calls, ticks = [], []

    def none_left(_: socket.socket) -> None:
        calls.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    with monitored_run(monitored()):
        served = server._server
        assert served is not None
        tick = served._tick
        monkeypatch.setattr(served, "_tick", lambda selector: (ticks.append(1), tick(selector)))
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", none_left)
            own = socket_dir.connect(mine(runtime_home))
            wait_until(lambda: len(ticks) > 5)
            assert 1 <= len(calls) <= len(ticks) + 1
        with own:
            first_line(own)


def test_a_scheduler_that_opens_as_the_last_one_closes_is_reported(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket of the new one has the same name: the old one may not be removed after it."""
    unlink, opened = Path.unlink, []

    def open_and_unlink(path: Path, missing_ok: bool = False) -> None:
        if path == mine(runtime_home) and not opened:
            thread = threading.Thread(target=lambda: opened.append(monitored()))
            opened.append(thread)
            thread.start()
            thread.join(0.5)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", open_and_unlink)
    monitored().close()
    thread = opened[0]
    assert isinstance(thread, threading.Thread)
    thread.join()
    with monitored_run(opened[1]) as run:  # type: ignore[arg-type]
        run(x=X)
        client = Client(os.getpid())
        assert one(client).schedulers[0].runs == 1
        client.close()


def test_a_server_that_ended_is_followed_by_another(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monitored_run(monitored()) as run:
        run(x=X)
        served = server._server
        assert served is not None
        monkeypatch.setattr(served, "_tick", lambda _: 1 / 0)
        with pytest.warns(vs.VkschedWarning, match=r"^\[monitor\] it ended: ZeroDivisionError"):
            served._thread.join(10)
        with monitored_run(monitored()):
            client = Client(os.getpid())
            assert [each.runs for each in one(client).schedulers] == [1, 0]
            client.close()


def test_where_no_socket_can_be_opened_a_warning_says_so_and_runs_go_on(runtime_home: Path) -> None:
    (runtime_home / "vksched").mkdir()
    (runtime_home / "vksched").chmod(0o755)
    with pytest.warns(vs.VkschedWarning, match=r"^\[monitor\] the scheduler is not monitored: "):
        sched = monitored()
    with monitored_run(sched) as run:
        run(x=X)


def test_a_look_that_fails_breaks_neither_runs_nor_other_schedulers(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monitored_run(monitored()) as run, monitored_run(monitored()) as other:
        served = server._server
        assert served is not None
        monkeypatch.setattr(served.watches[0], "look", lambda: 1 / 0)
        run(x=X)
        other(x=X)
        client = Client(os.getpid())
        (left,) = one(client).schedulers  # the first line that anybody asks for: it is fresh
        client.close()
        assert (left.number, left.runs) == (served.watches[1].number, 1)


FORKED = """
import os, sys, time
import numpy as np
import vksched as vs
from vksched.monitor import server
from vksched.monitor.client import Client
x = vs.input("x", (4, 4))
y = vs.exp(x)
a = np.ones((4, 4), np.float32)

def sees(pid, runs):
    client, end_s = Client(pid), time.monotonic() + 20
    while True:
        (found,) = client.wait_for_all(10)
        if [each.runs for each in found.schedulers] == [runs]:
            break
        assert time.monotonic() < end_s, found
        client.read(0.1)
    client.close()

with vs.Scheduler(["cpu"], monitor=True) as sched:
    run = sched.compile(y)
    run(x=a)
    parents = server._server
    pid = os.fork()
    if not pid:
        try:
            assert server._server is None and parents._listening.fileno() == -1
            sched.close()
            sees(os.getppid(), 1)
            with vs.Scheduler(["cpu"], monitor=True) as own:
                again = own.compile(y)
                again(x=a)
                again(x=a)
                sees(os.getpid(), 2)
                sees(os.getppid(), 1)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run(x=a)
    sees(os.getpid(), 2)
    files = sorted(os.listdir(os.path.join(os.environ["XDG_RUNTIME_DIR"], "vksched")))
    assert files == [f"{os.getpid()}.sock"], files
"""


@needs_fork
def test_a_forked_child_leaves_its_parents_socket_alone_and_may_have_its_own(
    runtime_home: Path,
) -> None:
    flags = ["-W", "error", "-W", "ignore:.*fork:DeprecationWarning"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *flags, "-c", FORKED]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_killed_process_is_gone_at_once_and_its_socket_is_removed(runtime_home: Path) -> None:
    with working(runtime_home, ["cpu"]) as process:
        path = runtime_home / "vksched" / f"{process.pid}.sock"
        client = Client()
        assert one(client).pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()

        def gone() -> bool:
            client.read(0.1)
            return not client.processes()

        wait_until(gone)
        assert path.exists(), "nobody was there to remove it"
        client.look_for_new()
        client.close()
        assert not path.exists() and client.problems == []


def test_a_process_that_ends_as_usual_removes_its_socket(runtime_home: Path) -> None:
    code = "import vksched as vs; sched = vs.Scheduler(['cpu'], monitor=True)"  # never closed
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
    assert list((runtime_home / "vksched").iterdir()) == []
