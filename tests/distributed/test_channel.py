"""Channels: messages arrive whole, in any mixture, and what may not be said ends them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from vksched.common.errors import DeviceError, DeviceTimeout, HostLost, OutOfMemory, StateLost
from vksched.common.schema import SchemaError
from vksched.distributed.wire import channel as channels
from vksched.distributed.wire.channel import BEAT, CHUNK_BYTES, DATA, FRAME, HEAD, Channel
from vksched.distributed.wire.error_codec import error_of, fields_of
from vksched.distributed.wire.heartbeat import HeartbeatMonitor
from vksched.distributed.wire.messages import MAX_FIELD_BYTES, Message, encode
from vksched.distributed.wire.stream import FairLock, Stream

RUN = {"plan": 1, "slot": 0, "sequence_number": 7}
WAIT_S = 60


class Echo:
    """Answers questions with what came; keeps all else."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.came = threading.Semaphore(0)
        self.gone = threading.Event()
        self.error: HostLost | None = None
        self.pool = ThreadPoolExecutor(4)
        self.held = threading.Event()
        self.held.set()
        self.inbox: np.ndarray[Any, Any] | None = None

    def place(self, message: Message, size: int) -> memoryview | None:
        return None if self.inbox is None else memoryview(self.inbox)

    def received(self, channel: Channel, message: Message) -> None:
        if message.ask is None:
            self.got.append(message)
            self.came.release()
        else:
            self.pool.submit(self.reply, channel, message)

    def reply(self, channel: Channel, message: Message) -> None:
        if message.kind == "remove":
            error = OutOfMemory("[x] no room")
            error.device = message.fields["device"]
            channel.refuse(message, error)
            return
        assert self.held.wait(WAIT_S)
        channel.answer(message, {}, [] if message.payload is None else [bytes(message.payload)])

    def lost(self, channel: Channel, error: HostLost) -> None:
        self.error = error
        self.gone.set()


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Echo, Channel, Echo]]:
    """Both ends of a connection; no heartbeat beats in it."""
    heartbeat, ours, theirs = HeartbeatMonitor(), *socket.socketpair()
    handlers = Echo(), Echo()
    one = Channel(Stream(ours), "there", handlers[0], heartbeat)
    other = Channel(Stream(theirs), "here", handlers[1], heartbeat)
    one.start()
    other.start()
    yield one, handlers[0], other, handlers[1]
    one.close()
    other.close()
    for each in handlers:
        each.pool.shutdown()


def test_a_value_arrives_in_the_memory_that_waits_for_it(pair, rng) -> None:  # type: ignore[no-untyped-def]
    one, _, _, there = pair
    sent = rng.integers(0, 256, 3 * CHUNK_BYTES + 17, np.uint8)
    there.inbox = np.zeros_like(sent)
    one.notify("value", {**RUN, "node": 3}, [sent])
    assert there.came.acquire(timeout=WAIT_S)
    assert np.array_equal(there.inbox, sent)
    assert there.got[0].fields == {**RUN, "node": 3}


def test_strided_empty_and_several_arrays_arrive_one_behind_the_other(pair) -> None:  # type: ignore[no-untyped-def]
    one, _, _, there = pair
    pieces = [np.arange(12.0).reshape(3, 4).T, np.zeros((0, 3)), np.array(5, np.int64)]
    one.notify("value", {**RUN, "node": 3}, pieces)
    assert there.came.acquire(timeout=WAIT_S)
    payload = there.got[0].payload
    assert payload is not None
    assert bytes(payload) == b"".join(each.tobytes() for each in pieces)


def test_answers_find_who_asked_in_any_order(pair) -> None:  # type: ignore[no-untyped-def]
    one, _, other, _ = pair
    sizes = [0, 1, 5, 20_000, 2 * CHUNK_BYTES + 3] * 8

    def ask(end: Channel, at: int) -> bool:
        sent = bytes([at % 251]) * sizes[at]
        answer = end.ask("echo", {}, [sent], WAIT_S)
        return bytes(answer.payload or b"") == sent

    with ThreadPoolExecutor(16) as pool:
        found = [pool.submit(ask, end, at) for at in range(len(sizes)) for end in (one, other)]
        assert all(each.result(WAIT_S) for each in found)


def test_a_small_message_overtakes_a_large_one(pair, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    one, _, other, there = pair
    arrived, begun, go_on = Channel._go_on, threading.Event(), threading.Event()

    def slowly(self: Channel, *args: Any) -> None:
        if self is other:
            begun.set()
            assert go_on.wait(WAIT_S)
        arrived(self, *args)

    monkeypatch.setattr(Channel, "_go_on", slowly)
    large = threading.Thread(
        target=one.notify,
        args=("value", {**RUN, "node": 3}, [np.zeros(40 * CHUNK_BYTES, np.uint8)]),
    )
    large.start()
    assert begun.wait(WAIT_S)
    small = threading.Thread(target=one.notify, args=("commit", RUN))
    small.start()
    while not one._stream.lock._waiting:  # it stands in line behind one chunk
        pass
    go_on.set()
    assert there.came.acquire(timeout=WAIT_S)
    assert there.got[0].kind == "commit"
    large.join()
    small.join()


def test_an_error_arrives_as_what_it_was(pair) -> None:  # type: ignore[no-untyped-def]
    one, *_ = pair
    with pytest.raises(OutOfMemory, match="no room") as caught:
        one.ask("remove", {"device": "vulkan:0", "key": "w"}, (), WAIT_S)
    assert caught.value.device == "there/vulkan:0"  # never one of the driver's own


def test_only_errors_of_our_own_are_rebuilt() -> None:
    lost = StateLost("gone")
    lost.device = "node1/cpu"
    again = error_of(fields_of(lost), "node1")
    assert (type(again), str(again), again.device) == (StateLost, "gone", "node1/cpu")  # type: ignore[attr-defined]
    assert type(error_of(fields_of(KeyError("x")), "node1")) is DeviceError
    stranger = {"error": "SystemExit", "text": "t", "device": "", "host": ""}
    assert type(error_of(stranger, "node1")) is DeviceError


def test_who_waits_in_vain_is_informed_and_what_comes_later_is_dropped(pair) -> None:  # type: ignore[no-untyped-def]
    one, _, _, there = pair
    there.held.clear()
    with pytest.raises(DeviceTimeout, match="echo"):
        one.ask("echo", {}, [b"x"], 0.01)
    there.held.set()
    assert bytes(one.ask("echo", {}, [b"y"], WAIT_S).payload or b"") == b"y"


def test_whoever_waits_hears_that_the_other_end_is_gone(pair) -> None:  # type: ignore[no-untyped-def]
    one, here, other, there = pair
    there.held.clear()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(one.ask, "echo", {}, [b"x"], WAIT_S) for _ in range(3)]
        while len(one._asked) < 3:
            pass
        other.close()
        for each in asked:
            with pytest.raises(HostLost) as caught:
                each.result(WAIT_S)
            assert caught.value.host == "there"
    there.held.set()
    assert here.gone.wait(WAIT_S)
    with pytest.raises(HostLost):
        one.notify("commit", RUN)
    with pytest.raises(HostLost):
        one.ask("echo", {})


def frame(sort: int, number: int = 1, fields: bytes = b"", size: int = 0) -> bytes:
    return FRAME.pack(sort, number, len(fields), size) + fields


VALUE = encode("value", {**RUN, "node": 3})
BROKEN = {
    "no frame": b"\xff" * 64,
    "an unknown frame": frame(9),
    "a beat that says something": frame(BEAT, 0, b"", 1),
    "huge fields": FRAME.pack(HEAD, 1, MAX_FIELD_BYTES + 1, 0),
    "a huge payload": frame(HEAD, 1, VALUE, 1 << 62),
    "no json": frame(HEAD, 1, b"{"),
    "no object": frame(HEAD, 1, b"[]"),
    "deep json": frame(HEAD, 1, b"[" * 60000),
    "an unknown kind": frame(HEAD, 1, b'{"kind":"pickle"}'),
    "no kind": frame(HEAD, 1, b"{}"),
    "a missing field": frame(HEAD, 1, b'{"kind":"commit","plan":1,"slot":0}'),
    "a field more": frame(HEAD, 1, encode("commit", {**RUN, "more": 1})),
    "a wrong type": frame(HEAD, 1, encode("commit", {**RUN, "slot": "0"})),
    "no finite number": frame(
        HEAD, 1, b'{"kind":"commit","plan":NaN,"slot":0,"sequence_number":1}'
    ),
    "a huge number": frame(HEAD, 1, encode("commit", {**RUN, "slot": 1 << 70})),
    "a payload where none belongs": frame(HEAD, 1, encode("commit", RUN), 4),
    "a question without a number": frame(HEAD, 1, encode("specs", {})),
    "a number where nothing is asked": frame(HEAD, 1, encode("commit", RUN, ask=1)),
    "an answer to what has none": frame(HEAD, 1, encode("commit", RUN, to=1)),
    "a refusal of nothing": frame(HEAD, 1, encode("refused", fields_of(KeyError()))),
    "data of nobody": frame(DATA, 5, b"", 4),
    "too much data": frame(HEAD, 1, VALUE, 4) + frame(DATA, 1, b"", 5),
    "a number twice": frame(HEAD, 1, VALUE, 4) + frame(HEAD, 1, VALUE, 4),
    "too many payloads": b"".join(
        frame(HEAD, number, VALUE, 4) for number in range(channels.MAX_OPEN_PAYLOADS + 1)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_may_not_be_reported_ends_the_connection(name: str) -> None:
    ours, theirs = socket.socketpair()
    handler = Echo()
    end = Channel(Stream(ours), "there", handler, HeartbeatMonitor())
    end.start()
    theirs.sendall(BROKEN[name])
    assert handler.gone.wait(WAIT_S)
    assert "it sent an invalid message" in str(handler.error)
    assert handler.got == []
    theirs.close()
    end.close()


def test_a_payload_that_nobody_awaits_takes_no_memory() -> None:
    class Strict(Echo):
        def place(self, message: Message, size: int) -> memoryview | None:
            raise SchemaError(f"nobody awaits {size} bytes")

    ours, theirs = socket.socketpair()
    handler = Strict()
    end = Channel(Stream(ours), "there", handler, HeartbeatMonitor())
    end.start()
    theirs.sendall(frame(HEAD, 1, VALUE, 1 << 35))
    assert handler.gone.wait(WAIT_S)
    assert f"nobody awaits {1 << 35}" in str(handler.error)
    theirs.close()
    end.close()


@pytest.mark.parametrize("cut", [1, FRAME.size - 1, FRAME.size, FRAME.size + 5, -1])
def test_a_message_that_is_cut_off_is_no_message(cut: int) -> None:
    ours, theirs = socket.socketpair()
    handler = Echo()
    end = Channel(Stream(ours), "there", handler, HeartbeatMonitor())
    end.start()
    whole = frame(HEAD, 1, VALUE, 4) + frame(DATA, 1, b"", 4) + b"1234"
    theirs.sendall(whole[:cut])
    theirs.close()
    assert handler.gone.wait(WAIT_S)
    assert handler.got == []
    end.close()


def test_turns_go_to_who_waits_longest() -> None:
    turns, order, threads = FairLock(), [], []
    turns.__enter__()
    for number in range(5):

        def work(number: int = number) -> None:
            with turns:
                order.append(number)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        while len(turns._waiting) <= number:
            pass
    assert not turns.attempt()
    turns.release()
    for each in threads:
        each.join()
    assert order == [0, 1, 2, 3, 4]
    assert turns.attempt()


def test_frames_have_one_size_on_every_system() -> None:
    assert FRAME.size == struct.calcsize("<BxxxIIQ") == 20
