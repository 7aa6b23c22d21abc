"""Whoever is no member of the cluster gets nothing, and costs nothing; members are told why."""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import clusters
import pytest

from vksched.common.errors import DeviceError, VkschedError
from vksched.distributed.wire import listener as listening
from vksched.distributed.wire import tls
from vksched.distributed.wire.credentials import Credentials
from vksched.distributed.wire.handshake import exchange, hello, require_equal
from vksched.distributed.wire.listener import ConnectionLimiter, Listener, network_of
from vksched.distributed.wire.messages import Fields
from vksched.distributed.wire.stream import ConnectionClosed, Stream
from vksched.distributed.wire.tls import GREETING, Security, place_of, place_text
from vksched.ops.lowering import native_kernels

LOOPBACK = ("127.0.0.1", 0)
WAIT_S = 60
DRIVER, NODE = hello("driver", "", "c1"), hello("worker", "node1", "")


class Door:
    """A listener that keeps who came in."""

    def __init__(self, kind: str, mine: Fields = NODE) -> None:
        self.came: list[tuple[Stream, Fields]] = []
        self.there = threading.Semaphore(0)
        self.security = Security(clusters.make_credentials(), kind)
        self.listener = Listener(LOOPBACK, self.security, mine, self.welcome)
        self.address = self.listener.address

    def welcome(self, stream: Stream, theirs: Fields) -> None:
        self.came.append((stream, theirs))
        self.there.release()

    def let_in(self) -> Fields:
        """Let a member in, as the door still does."""
        stream = self.security.connect(self.address, WAIT_S)
        theirs = exchange(stream, DRIVER)
        require_equal(DRIVER, theirs, "it")
        assert self.there.acquire(timeout=WAIT_S)
        stream.close()
        return self.came[-1][1]

    def close(self) -> None:
        self.listener.close()
        for stream, _ in self.came:
            stream.close()


@pytest.fixture(params=["tls", "plain"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    door = Door(request.param)
    yield door
    door.close()


def reply_of(own: socket.socket) -> bytes:
    """Return all that a node says to a stranger, until it hangs up."""
    own.settimeout(WAIT_S)
    out = b""
    try:
        while piece := own.recv(4096):
            out += piece
    except OSError:
        pass
    own.close()
    return out


def hung_up(own: socket.socket) -> bool:
    """Return True if the node has hung up on a socket."""
    own.setblocking(False)
    try:
        while own.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def test_a_member_gets_in_and_both_know_who_is_there(door: Door) -> None:
    stream = door.security.connect(door.address, WAIT_S)
    theirs = exchange(stream, DRIVER)
    assert door.there.acquire(timeout=WAIT_S)
    assert (theirs["role"], theirs["name"]) == ("worker", "node1")
    assert (door.came[0][1]["role"], door.came[0][1]["driver"]) == ("driver", "c1")
    stream.close()


GARBAGE = {
    "nothing": b"",
    "noise": secrets.token_bytes(4096),
    "zeros": bytes(4096),
    "a web browser": b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
    "a greeting with a wrong proof": GREETING + bytes(32) + bytes(32),
    "a greeting of another program": b"someone\n" + bytes(64),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_gets_nothing_but_random_bytes(door: Door, name: str) -> None:
    own = socket.create_connection(door.address, WAIT_S)
    with suppress(OSError):  # it hangs up as soon as it has seen enough
        own.sendall(GARBAGE[name])
        own.shutdown(socket.SHUT_WR)
    heard = reply_of(own)
    if door.security.kind == "plain":  # a greeting and random bytes, or nothing
        assert heard == b"" or (heard.startswith(GREETING) and len(heard) == len(GREETING) + 32)
    else:  # an alert of TLS
        assert len(heard) < 16
    assert door.let_in()["driver"] == "c1"
    assert len(door.came) == 1


def test_what_was_reported_once_is_no_proof_later() -> None:
    """A recorded conversation, played again to a node, ends where the proof is checked."""
    door, record = Door("plain"), bytearray()
    sent = Stream.send

    def noting(self: Stream, *pieces: bytes, **named: object) -> None:
        if threading.current_thread() is threading.main_thread():
            record.extend(b"".join(pieces))
        sent(self, *pieces, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "send", noting)
        door.let_in()
    own = socket.create_connection(door.address, WAIT_S)
    with suppress(OSError):
        own.sendall(record)
    assert len(reply_of(own)) == len(GREETING) + 32
    assert len(door.came) == 1
    door.close()


def test_a_proof_cannot_be_handed_back_to_who_created_it() -> None:
    """A false node that returns the driver's own bytes does not know the secret."""
    false = socket.create_server(LOOPBACK)

    def mirror() -> None:
        own, _ = false.accept()
        with own:
            while piece := own.recv(4096):
                own.sendall(piece)

    thread = threading.Thread(target=mirror)
    thread.start()
    with pytest.raises(DeviceError, match="same file"):
        Security(clusters.make_credentials(), "plain").connect(false.getsockname(), WAIT_S)
    thread.join()
    false.close()


def without_certificate() -> ssl.SSLContext:
    built = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    built.check_hostname = False
    built.verify_mode = ssl.CERT_NONE
    return built


def with_old_tls() -> ssl.SSLContext:
    credentials = clusters.make_credentials().context(server=False)
    credentials.minimum_version = ssl.TLSVersion.TLSv1_2
    credentials.maximum_version = ssl.TLSVersion.TLSv1_2
    return credentials


def of_another_cluster() -> ssl.SSLContext:
    built = clusters.others().context(server=False)
    built.verify_mode = ssl.CERT_NONE
    return built


@pytest.mark.parametrize("context", [without_certificate, with_old_tls, of_another_cluster])
def test_tls_without_the_clusters_certificate_gets_nothing(
    context: Callable[[], ssl.SSLContext],
) -> None:
    door = Door("tls")
    try:
        own, heard = socket.create_connection(door.address, WAIT_S), b""
        own.settimeout(WAIT_S)
        with suppress(OSError), context().wrap_socket(own) as inside:
            inside.sendall(GREETING + bytes(64))
            heard = reply_of(inside)
        assert heard == b""
        assert door.let_in()
        assert len(door.came) == 1
    finally:
        door.close()


def test_the_certificate_without_the_secret_gets_nothing() -> None:
    credentials = clusters.make_credentials()
    half = Credentials(bytes(32), credentials.certificate, credentials.key)
    door = Door("tls")
    try:
        with pytest.raises(DeviceError, match="credentials"):
            Security(half).connect(door.address, WAIT_S)
        assert door.let_in()
        assert len(door.came) == 1
    finally:
        door.close()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("plain", "tls"), ("tls", "plain"), ("tls", "others"), ("plain", "others")]
)
def test_two_that_differ_are_asked_to_use_the_same_file_and_security(
    ours: str, theirs: str
) -> None:
    door = Door(ours if theirs == "others" else theirs)
    mine = Security(clusters.others() if theirs == "others" else clusters.make_credentials(), ours)
    try:
        with pytest.raises(DeviceError, match="same file and security"):
            mine.connect(door.address, WAIT_S)
        assert door.came == []
    finally:
        door.close()


def test_who_says_nothing_is_sent_away_and_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch, door: Door
) -> None:
    """More silent strangers than there are places, some of which say a byte now and then."""
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.05)
    slow = [socket.create_connection(door.address, WAIT_S) for _ in range(2 * listening.STRANGERS)]
    for own in slow[::2]:
        with suppress(OSError):
            own.sendall(GREETING[:1])
    for own in slow:
        reply_of(own)  # ends, as the node hangs up
    monkeypatch.setattr(tls, "HANDSHAKE_S", WAIT_S)
    assert door.let_in()
    assert len(door.came) == 1


def test_silent_strangers_of_any_number_keep_no_member_out(
    monkeypatch: pytest.MonkeyPatch, door: Door
) -> None:
    """Nobody is sent away as time is up; all are at the member's own address."""
    monkeypatch.setattr(tls, "HANDSHAKE_S", WAIT_S)
    monkeypatch.setattr(listening, "WAITING", 16)
    monkeypatch.setattr(listening, "PATIENT_S", 0.2)
    slow = [socket.create_connection(door.address, WAIT_S) for _ in range(120)]
    assert door.let_in()
    doors = sum(each.name == "vksched-door" for each in threading.enumerate())
    assert doors <= listening.STRANGERS + listening.WAITING + listening.LEAVING
    until_s = time.monotonic() + WAIT_S
    while sum(map(hung_up, slow)) < len(slow) - listening.STRANGERS:  # all others had to go
        assert time.monotonic() < until_s
        time.sleep(0.01)
    for own in slow:
        own.close()
    assert len(door.came) == 1


def test_many_members_of_one_address_may_come_at_once(door: Door) -> None:
    """As of a cluster behind one address: each takes a while, and more come than have a place."""
    count, met = listening.STRANGERS + listening.WAITING // 2, threading.Event()

    def come() -> Stream:
        stream = door.security.connect(door.address, WAIT_S)
        met.wait(0.05)  # the way is long
        exchange(stream, DRIVER)
        return stream

    with ThreadPoolExecutor(count) as threads:
        streams = [each.result() for each in [threads.submit(come) for _ in range(count)]]
    for _ in range(count):
        assert door.there.acquire(timeout=WAIT_S)
    for stream in streams:
        stream.close()


def test_a_network_of_one_owner_counts_as_one_address() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") != network_of("2001:db8:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("::ffff:10.0.0.1") != network_of("::ffff:10.0.0.2")


def test_an_address_with_many_strangers_takes_no_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "PATIENT_S", 0.0)
    doors, ends = ConnectionLimiter(8), [socket.socketpair() for _ in range(22)]
    here, there = [each for each, _ in ends], [each for _, each in ends]
    stored = [doors.take("10.0.0.2", here[0]), doors.take("10.0.0.3", here[1])]
    many = [doors.take("10.0.0.1", own) for own in here[2:]]
    assert doors.release("10.0.0.2", stored[0]) and doors.release("10.0.0.3", stored[1])
    assert [doors.release("10.0.0.1", each) for each in many] == [False] * 14 + [True] * 6
    assert not doors.release("10.0.0.1", many[-1]) and not doors._by_address
    for own in there[2:16]:
        assert reply_of(own) == b""  # it was hung up
    for own in (*here, *there):
        own.close()


def test_one_byte_at_a_time_does_not_buy_more_time() -> None:
    ours, theirs = socket.socketpair()
    stream, until_s = Stream(ours), time.monotonic() + 0.05
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.001):
            theirs.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(ConnectionClosed, match="too long"):
        stream.receive_all(memoryview(bytearray(1 << 30)), until_s)
    ended.set()
    thread.join()
    stream.close()
    theirs.close()


@pytest.mark.parametrize("key", ["version", "shaders", "ops"])
def test_another_version_is_reported_at_the_caller_and_gets_no_further(
    door: Door, key: str
) -> None:
    stream = door.security.connect(door.address, WAIT_S)
    other = {**DRIVER, key: "another"}
    theirs = exchange(stream, other)
    with pytest.raises(DeviceError, match="another here") as caught:
        require_equal(other, theirs, "node1")
    assert str(caught.value).count(" there") == 1
    with pytest.raises(ConnectionClosed):
        stream.receive(memoryview(bytearray(1)))
    stream.close()
    assert door.let_in()
    assert len(door.came) == 1


def test_nodes_without_shaders_compare_how_words_hold_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = hello("driver", "desk", "desk")
    monkeypatch.setattr(native_kernels, "QUANT_LAYOUT_VERSION", 1)
    with pytest.raises(DeviceError, match="ops"):
        require_equal(mine, hello("worker", "node1", "desk"), "node1")


def test_all_that_differs_is_reported_at_once() -> None:
    with pytest.raises(DeviceError) as caught:
        require_equal(DRIVER, {**DRIVER, "version": "9", "shaders": "s", "ops": "o"}, "node1")
    assert str(caught.value).count(" there") == 3


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xff\xff\xff",
        b"\x02\x00\x00\x00[]",
        b"\x10\x00\x00\x00" + b"[" * 16,
        b"\x0e\x00\x00\x00" + b'{"protocol":1}',
        b"\x0e\x00\x00\x00" + b'{"protocol":2}',
    ],
    ids=["huge", "a list", "deep", "another protocol", "no more"],
)
def test_a_member_that_says_no_hello_gets_no_further(door: Door, text: bytes) -> None:
    stream = door.security.connect(door.address, WAIT_S)
    with stream.lock:
        stream.send(text)
    with pytest.raises(ConnectionClosed):
        while True:
            stream.receive(memoryview(bytearray(4096)))
    stream.close()
    assert door.let_in()
    assert len(door.came) == 1


def test_nobody_there_says_how_to_start_a_node() -> None:
    free = socket.create_server(LOOPBACK)
    address = free.getsockname()
    free.close()
    with pytest.raises(DeviceError, match="vksched worker --listen"):
        Security(clusters.make_credentials()).connect(address, WAIT_S)


def test_an_address_that_is_taken_says_so() -> None:
    door = Door("plain")
    try:
        with pytest.raises(DeviceError, match="cannot listen"):
            Listener(door.address, door.security, NODE, door.welcome)
    finally:
        door.close()


def test_addresses_and_kinds_of_security_are_checked() -> None:
    assert place_of("127.0.0.1:7700") == ("127.0.0.1", 7700)
    assert place_of(place_text(("::1", 7700))) == ("::1", 7700)
    for text in ("", "7700", ":7700", "a:", "a:b", "a:65536", "a:-1", "a:٣"):
        with pytest.raises(VkschedError, match="HOST:PORT"):
            place_of(text)
    with pytest.raises(VkschedError, match="tls or plain"):
        Security(clusters.make_credentials(), "none")
