"""The heartbeat: silence is counted in its own turns, and ends a connection; nothing else does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import needs_linux, needs_posix
from test_channel import Echo

from vksched.common.user_warning import VkschedWarning
from vksched.distributed.wire.channel import Channel
from vksched.distributed.wire.heartbeat import PATIENCE, TICK_S, TIMEOUT_S, HeartbeatMonitor
from vksched.distributed.wire.stream import ConnectionClosed, Stream

WAIT_S = 60
SILENT_TICKS = int(TIMEOUT_S / TICK_S) - 1


class ByHand(HeartbeatMonitor):
    """A heartbeat whose turns the test takes; it has no thread."""

    def add(self, channel: object) -> None:
        self._channels.append(channel)  # type: ignore[arg-type]

    def remove(self, channel: object) -> None:
        self._channels = [each for each in self._channels if each is not channel]


@pytest.fixture
def ends() -> Iterator[tuple[ByHand, Channel, Echo, socket.socket]]:
    ours, theirs = socket.socketpair()
    heartbeat, handler = ByHand(), Echo()
    end = Channel(Stream(ours), "there", handler, heartbeat)
    end.start()
    yield heartbeat, end, handler, theirs
    end.close()
    theirs.close()


def heard(end: Channel) -> None:
    """Wait until the reader has noted what came."""
    while not end.heard:
        pass


def test_silence_ends_a_connection_after_so_many_turns_and_no_fewer(ends) -> None:  # type: ignore[no-untyped-def]
    heartbeat, end, handler, theirs = ends
    assert TIMEOUT_S == 2.0
    for _ in range(SILENT_TICKS):  # the first finds that it has just begun
        heartbeat.tick(send=True)
    assert not handler.gone.is_set()
    heartbeat.tick(send=True)
    assert handler.gone.is_set()
    assert "silent for 1.75 s" in str(handler.error)


def test_a_beat_counts_as_life(ends) -> None:  # type: ignore[no-untyped-def]
    heartbeat, end, handler, theirs = ends
    other = Channel(Stream(theirs), "here", Echo(), ByHand())
    other.start()
    for _ in range(3 * SILENT_TICKS):
        end.heard = False
        other.send_heartbeat()
        heard(end)
        heartbeat.tick(send=True)
    assert end.quiet == 0
    assert not handler.gone.is_set()
    other.close()


def test_what_lies_unread_counts_as_life(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    heartbeat, end, handler, _ = ends
    monkeypatch.setattr(Stream, "readable", lambda self: True)
    for _ in range(3 * SILENT_TICKS):
        end.heard = False
        heartbeat.tick(send=True)
    assert not handler.gone.is_set()


@pytest.mark.parametrize(
    ("payload", "most"), [("none", SILENT_TICKS), ("some", SILENT_TICKS), ("goes on", 28)]
)
def test_silence_lasts_longer_where_payload_is_taken_meanwhile(  # type: ignore[no-untyped-def]
    ends, monkeypatch, payload: str, most: int
) -> None:
    heartbeat, end, handler, _ = ends
    taken = {"none": [20] * 99, "some": [9999, *[20] * 99], "goes on": [2000] * 99}[payload]
    sums = iter(np.cumsum(taken).tolist())
    monkeypatch.setattr(Stream, "taken_bytes", lambda self: next(sums))
    end.heard = False
    ticks = 0
    while not handler.gone.is_set():
        heartbeat.tick(send=False)
        ticks += 1
    assert ticks == most == SILENT_TICKS * (PATIENCE if payload == "goes on" else 1)


@needs_linux
def test_the_system_tells_how_much_the_other_end_has_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = Stream(socket.create_connection(listening.getsockname()))
        theirs, _ = listening.accept()
        assert ours.taken_bytes() <= 1  # the opening of a connection counts as one
        while send_some(ours):
            pass
        taken = ours.taken_bytes()
        assert 1 << 15 < taken
        rest, unread = memoryview(bytearray(1 << 20)), taken
        while unread > 0:
            unread -= theirs.recv_into(rest)
        while ours.taken_bytes() <= taken:
            theirs.recv_into(rest)
        ours.close()
        theirs.close()


def send_some(ours: Stream) -> bool:
    """Send a MiB; returns whether it went out."""
    try:
        with ours.lock:
            ours.send(bytes(1 << 20), until_s=time.monotonic() + 0.2)
    except ConnectionClosed:
        return False
    return True


def test_a_connection_that_cannot_be_ended_keeps_no_other_from_its_beat(  # type: ignore[no-untyped-def]
    ends, monkeypatch
) -> None:
    heartbeat, end, handler, _ = ends
    ours, theirs = socket.socketpair()
    other = Channel(Stream(ours), "elsewhere", Echo(), heartbeat)
    other.start()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(handler, "lost", no_thread)
    end.heard, end.quiet = False, SILENT_TICKS
    with pytest.warns(VkschedWarning, match="can't start new thread"):
        heartbeat.tick(send=True)
    assert heartbeat._channels == [other] and theirs.recv(1)
    other.close()
    theirs.close()


def test_beats_never_wait_for_who_does_not_read(ends) -> None:  # type: ignore[no-untyped-def]
    _, end, handler, theirs = ends
    for _ in range(100_000):
        end.send_heartbeat()
    whole = len(end._stream._left)
    assert whole < 20  # bytes of a beat that was begun
    assert not handler.gone.is_set()


def test_a_message_goes_out_whole_behind_a_beat_that_was_begun(ends) -> None:  # type: ignore[no-untyped-def]
    _, end, handler, theirs = ends
    for _ in range(100_000):
        end.send_heartbeat()
    got = Echo()
    other = Channel(Stream(theirs), "here", got, ByHand())
    teller = threading.Thread(
        target=end.notify, args=("commit", {"plan": 1, "slot": 2, "sequence_number": 3})
    )
    teller.start()
    other.start()
    teller.join()
    assert got.came.acquire(timeout=WAIT_S)
    assert got.got[0].kind == "commit"
    other.close()


def test_the_thread_ends_with_the_last_connection() -> None:
    heartbeat = HeartbeatMonitor()
    ours, theirs = socket.socketpair()
    ends = [Channel(Stream(each), "x", Echo(), heartbeat) for each in (ours, theirs)]
    for each in ends:
        each.start()
    thread = heartbeat._thread
    assert thread is not None and thread.is_alive()
    for each in ends:
        each.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


STANDS = """
import socket, sys, threading
sys.path[:0] = {paths!r}
from test_channel import Echo
from vksched.distributed.wire.channel import Channel
from vksched.distributed.wire.stream import ConnectionClosed, Stream
end = Channel(Stream(socket.socket(fileno={number})), "parent", Echo())
end.start()
print("there", flush=True)
sys.stdin.read()
"""


@needs_posix
def test_a_process_that_stands_still_is_lost() -> None:
    ours, theirs = socket.socketpair()
    heartbeat = HeartbeatMonitor(
        timeout_s=1e6
    )  # until it stands still it may be as slow as it likes
    paths = [os.path.dirname(__file__), *sys.path]
    child = subprocess.Popen(
        [sys.executable, "-c", STANDS.format(number=theirs.fileno(), paths=paths)],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    theirs.close()
    handler = Echo()
    try:
        assert child.stdout is not None and child.stdout.readline() == b"there\n"
        end = Channel(Stream(ours), "child", handler, heartbeat)
        end.start()
        assert bytes(end.ask("echo", {}, [b"x"], WAIT_S).payload or b"") == b"x"
        child.send_signal(signal.SIGSTOP)
        heartbeat.timeout_s = TIMEOUT_S
        assert handler.gone.wait(WAIT_S)
        assert "silent" in str(handler.error)
    finally:
        child.kill()
        child.communicate()
        ours.close()
