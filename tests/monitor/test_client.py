"""The client: what another end sends is bounded and checked, and one that is bad harms no other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from monitored import process_now, wait_until, working

import vksched as vs
from vksched.monitor import socket_dir
from vksched.monitor.client import Client
from vksched.monitor.top.snapshot import LINE_BYTES, encode


@contextlib.contextmanager
def sending(pid: int, *parts: bytes) -> Iterator[Callable[[bytes], None]]:
    """A process that sends some bytes to the first who connects, and later more."""
    own, path = socket_dir.listen(pid, 2)
    theirs: list[socket.socket] = []

    def more(text: bytes) -> None:
        while not theirs:
            own.setblocking(True)
            asking, _ = own.accept()
            asking.setblocking(False)
            try:
                asking.recv(1)
                asking.close()  # another process looked whether anybody is here, and hung up
            except BlockingIOError:
                asking.settimeout(0.2)
                theirs.append(asking)
        with contextlib.suppress(OSError):
            theirs[0].sendall(text)  # as much as fits

    try:
        yield more
    finally:
        for each in (own, *theirs):
            each.close()
        path.unlink(missing_ok=True)


def read_until(client: Client, found: Callable[[], object]) -> None:
    def asked() -> object:
        client.read(0.05)
        return found()

    wait_until(asked)


def test_lines_that_come_in_pieces_are_put_together(runtime_home: Path) -> None:
    line = encode(process_now(11))
    with sending(11) as send:
        client = Client(11)
        client.look_for_new()
        send(line[:100])
        client.read(0.1)
        assert client.processes() == []
        send(line[100:] + encode(replace(process_now(11), program="later")) + line[:10])
        read_until(client, client.processes)
        assert client.processes()[0].program == "later"
        client.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"garbage\n", "expected a line of a running vksched"),
        (b"x" * (LINE_BYTES + 1), "expected lines of at most"),
        (b"\n", "expected a line of a running vksched"),
        (b"{" * 1000 + b"\n", "expected a line of a running vksched"),
    ],
)
def test_nonsense_ends_its_connection_and_no_other(
    runtime_home: Path, text: bytes, problem: str
) -> None:
    with sending(11) as bad, sending(12) as good:
        client = Client()
        client.look_for_new()
        good(encode(process_now(12)))
        read_until(client, lambda: bad(text) or (client.problems and client.processes()))
        assert [p.pid for p in client.processes()] == [12]
        assert len(client.problems) == 1 and problem in client.problems[0]
        client.look_for_new()
        assert len(client._connections) == 1, "it is not asked again"
        client.close()


def test_a_giant_line_takes_no_more_memory_than_a_line(runtime_home: Path) -> None:
    with sending(11) as bad:
        client = Client()
        client.look_for_new()
        sent = 0
        while not client.problems:
            bad(b"x" * 10_000)
            sent += 10_000
            client.read(0.1)
        assert sent <= LINE_BYTES + 3 * (1 << 16)
        client.close()


def test_a_process_that_is_not_there_is_one_clear_error(runtime_home: Path) -> None:
    with pytest.raises(vs.VkschedError, match=r"got none; try VKSCHED_MONITOR=1"):
        Client(4711).look_for_new()
    client = Client()
    assert client.wait_for_all(0.1) == [] and client.problems == []


def test_all_processes_of_the_user_are_found_as_they_appear(runtime_home: Path) -> None:
    client = Client()
    with working(runtime_home, ["cpu"]) as first:
        assert [p.pid for p in client.wait_for_all(10)] == [first.pid]
        with working(runtime_home, ["cpu"]) as second:
            client.look_for_new()
            read_until(client, lambda: len(client.processes()) == 2)
            reported = {p.pid: p for p in client.processes()}
            assert reported.keys() == {first.pid, second.pid}
            assert all(p.schedulers[0].runs > 0 for p in reported.values())
            only = Client(second.pid)
            assert [p.pid for p in only.wait_for_all(10)] == [second.pid]
            only.close()
    client.close()


def test_a_stranger_in_the_folder_is_reported_as_a_problem(runtime_home: Path) -> None:
    with sending(11) as send:
        os.chmod(runtime_home / "vksched" / "11.sock", 0o666)
        client = Client()
        client.look_for_new()
        client.look_for_new()
        assert len(client.problems) == 1 and "with mode 666" in client.problems[0]
        client.close()
        del send
