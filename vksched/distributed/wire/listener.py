"""Listener: who may come in.

    connect --> ConnectionLimiter, a place --a thread of its own--> Security.accept --> hello -->
    equal?
                                                                       '--> welcome(stream, hello)

Strangers cost little: a few at a time, each for a few seconds. Where all places are taken, the
address that has most of them gives up its oldest connection, so that nobody keeps others out. Who
comes from that address waits until the oldest has had its time: all nodes of a cluster may come at
once from one address, and are not silent. Where too many wait, too, who is faster than the
strangers there are many gets in. A failure of one never ends the listener. Examples:
tests/distributed/test_strangers.py.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ...common.errors import DeviceError
from ...common.user_warning import warn
from .handshake import exchange, require_equal
from .messages import Fields
from .stream import Closed, Stream
from .tls import Security, place_text

STRANGERS = 32
"""Connections that have not said hello yet."""
BACKLOG = 256
"""Connections that the system holds until they are accepted."""
WAITING = 96
"""Connections that wait for a place, of all addresses."""
PATIENT_S = 1.0
"""So long a connection keeps its place from others of its address."""
LEAVING = 32
"""Threads of connections that had to give up their place, and notice it."""
RETRY_S = 0.1
"""After an accept that failed, as where there are no more files."""

Welcome = Callable[[Stream, Fields], None]


class ConnectionLimiter:
    """The connections that have a place, by address and the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_address: dict[str, dict[socket.socket, float]] = {}
        """Each with the time at which it got its place."""
        self._waiting = 0
        self._changed = threading.Condition()

    def take(self, address: str, own: socket.socket) -> socket.socket:
        """Give a connection a place, maybe after a while, and returns what it is given back with.
        Where there was none left, another connection ends.
        """
        handle, address = own.dup(), network_of(address)  # TLS takes `own` over
        with self._changed:
            while self._waiting < WAITING and (left_s := self._left_s(address)) > 0:
                self._waiting += 1
                self._changed.wait(left_s)
                self._waiting -= 1
            fullest = self._fullest(address)
            self._by_address.setdefault(address, {})[handle] = time.monotonic()
            if fullest is not None:
                oldest = next(iter(self._by_address[fullest]))
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
                self._drop(fullest, oldest)
        return handle

    def _fullest(self, address: str) -> str | None:
        """Return the address that has to give a place up for one more of an address; None where
        there is a place.
        """
        counts = {each: len(there) for each, there in self._by_address.items()}
        if sum(counts.values()) < self._most:
            return None
        counts[address] = counts.get(address, 0) + 1
        return max(counts, key=counts.__getitem__)

    def _left_s(self, address: str) -> float:
        """Return how long a connection has to wait for a place at least."""
        if self._fullest(address) != address or address not in self._by_address:
            return 0.0
        oldest_s = next(iter(self._by_address[address].values()))
        return oldest_s + PATIENT_S - time.monotonic()

    def release(self, address: str, handle: socket.socket) -> bool:
        """Free a place, and returns whether it was still that connection's."""
        address = network_of(address)
        with self._changed:
            found = handle in self._by_address.get(address, ())
            if found:
                self._drop(address, handle)
                self._changed.notify()
        handle.close()
        return found

    def _drop(self, address: str, handle: socket.socket) -> None:
        del self._by_address[address][handle]
        if not self._by_address[address]:
            del self._by_address[address]


def network_of(address: str) -> str:
    """Returns what stands for all addresses that one owner has: of IPv6 a network of 64 bits."""
    with suppress(ValueError):
        found = ipaddress.ip_address(address.partition("%")[0])
        if found.version == 6 and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return address


class Listener:
    """Accepts connections on a thread. mine: the hello of this process. welcome: called on a thread
    of its own with the stream and the other end's hello.

    Raises:
        DeviceError: the address cannot be listened at.
    """

    def __init__(
        self, address: tuple[str, int], security: Security, mine: Fields, welcome: Welcome
    ) -> None:
        self._security, self._mine, self._welcome = security, mine, welcome
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            raise DeviceError(
                f"[cluster] cannot listen at {place_text(address)}: {error.strerror or error}; try "
                "an address of this computer, or another port"
            ) from error
        host, port = self._socket.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        self._limiter = ConnectionLimiter(STRANGERS)
        self._threads = threading.BoundedSemaphore(STRANGERS + WAITING + LEAVING)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="vksched-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes nobody else in; those who are in stay."""
        self._ended.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            self._threads.acquire()
            try:
                own, (address, *_) = self._socket.accept()
                threading.Thread(
                    target=self._take_in, args=(own, address), name="vksched-door", daemon=True
                ).start()
            except (OSError, RuntimeError):  # no files or threads left, for a while
                self._threads.release()
                self._ended.wait(RETRY_S)

    def _take_in(self, own: socket.socket, address: str) -> None:
        stream: Stream | None = None
        try:
            try:
                handle = self._limiter.take(address, own)
                try:
                    stream = self._security.accept(own)
                    theirs = exchange(stream, self._mine)
                finally:
                    in_time = self._limiter.release(address, handle)
            finally:
                self._threads.release()
            if not in_time:
                raise Closed("another connection needed its place")
            require_equal(self._mine, theirs, "the other end")
            self._welcome(stream, theirs)
        except (Closed, DeviceError):  # the other end tells its user
            (stream or own).close()
        except Exception as error:
            (stream or own).close()
            warn(f"[cluster] a connection failed: {error!r}")
