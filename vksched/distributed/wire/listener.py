"""Listener: accept connections and limit unauthenticated ones.

    connect --> ConnectionLimiter: a place --its own thread--> Security.accept --> hello --> equal?
                                                                       '--> welcome(stream, hello)

Unauthenticated connections have few places, each for a few seconds. If all places are taken, the
address with most places loses its oldest connection, so that no address can block others. Another
connection from that address waits until the oldest one has had its time: all workers of a cluster
may connect at once from one address. If too many wait as well, connections compete. An error of one
connection never ends the listener. Examples: tests/distributed/test_strangers.py.
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
from .stream import ConnectionClosed, Stream
from .tls import Security, place_text

STRANGERS = 32
"""Maximum number of connections before HELLO."""
BACKLOG = 256
"""Connections in the system's accept queue."""
WAITING = 96
"""Maximum number of connections that wait for a place, of all addresses."""
PATIENT_S = 1.0
"""Seconds for which a connection is safe from others of its address."""
LEAVING = 32
"""Maximum number of threads that close evicted connections."""
RETRY_S = 0.1
"""Seconds after a failed accept, for example without free file descriptors."""

Welcome = Callable[[Stream, Fields], None]


class ConnectionLimiter:
    """The connections with a place, by address, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_address: dict[str, dict[socket.socket, float]] = {}
        """The connections of each address with the time of their admission."""
        self._waiting = 0
        self._changed = threading.Condition()

    def take(self, address: str, own: socket.socket) -> socket.socket:
        """Give a connection a place, if necessary after a wait, and return a handle for `release`.
        May evict another connection.
        """
        handle, address = own.dup(), network_of(address)  # TLS takes ownership of `own`
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
        """Return the address that loses a place to a new connection of `address`, or None if one is
        free.
        """
        counts = {each: len(there) for each, there in self._by_address.items()}
        if sum(counts.values()) < self._most:
            return None
        counts[address] = counts.get(address, 0) + 1
        return max(counts, key=counts.__getitem__)

    def _left_s(self, address: str) -> float:
        """Return the minimum seconds that a connection has to wait for a place."""
        if self._fullest(address) != address or address not in self._by_address:
            return 0.0
        oldest_s = next(iter(self._by_address[address].values()))
        return oldest_s + PATIENT_S - time.monotonic()

    def release(self, address: str, handle: socket.socket) -> bool:
        """Free a place; return True if the connection still had it."""
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
    """Return the network of an address that counts as one owner: a /64 network in IPv6."""
    with suppress(ValueError):
        found = ipaddress.ip_address(address.partition("%")[0])
        if found.version == 6 and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return address


class Listener:
    """Accept connections on a thread.

    Parameters
    ----------
    mine
        HELLO of this process.
    welcome
        Called on its own thread with the stream and the peer's HELLO.

    Raises
    ------
    DeviceError
        The address cannot be bound.
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
        """Stop accepting connections; existing ones stay open."""
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
                    target=self._accept, args=(own, address), name="vksched-door", daemon=True
                ).start()
            except (OSError, RuntimeError):  # temporarily no files or threads left
                self._threads.release()
                self._ended.wait(RETRY_S)

    def _accept(self, own: socket.socket, address: str) -> None:
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
                raise ConnectionClosed("it was evicted by another connection")
            require_equal(self._mine, theirs, "the other end")
            self._welcome(stream, theirs)
        except (ConnectionClosed, DeviceError):  # the peer reports the error to its user
            (stream or own).close()
        except Exception as error:
            (stream or own).close()
            warn(f"[cluster] a connection failed: {error!r}")
