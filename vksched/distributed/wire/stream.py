"""Stream: bytes to and from one peer over a socket, with or without TLS.

    reader thread --receive--> memory         senders --lock.acquire--> send --> socket

Problem: one thread reads while others write, and OpenSSL allows one concurrent call per connection.
Method: the socket is non-blocking. A call takes the lock, transfers as much as is possible, and
releases it; waiting happens outside, with `poll`. Examples: tests/distributed/test_channel.py.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress

POLL_S = 0.5
"""Interval in seconds at which a waiting sender checks whether the connection is closed."""
_TAKEN, _TAKEN_AT = struct.Struct("=Q"), 120
"""Offset of `tcpi_bytes_acked` in Linux's `struct tcp_info`."""
Wants = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


class ConnectionClosed(Exception):
    """The connection is closed; the text says why."""


class FairLock:
    """A lock that is acquired in order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def attempt(self) -> bool:
        """Acquire the lock if it is free and no thread waits."""
        with self._lock:
            taken = not self._held
            self._held = True
            return taken

    def __enter__(self) -> None:
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Pass the lock to the thread that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class Stream:
    """lock: held by the sender. Only one thread may receive."""

    def __init__(self, own: socket.socket) -> None:
        self.lock = FairLock()
        self._socket = own
        self._inside: AbstractContextManager[object] = (
            threading.Lock() if isinstance(own, ssl.SSLSocket) else nullcontext()
        )
        self._left = b""
        """Rest of a heartbeat that was sent in part."""
        self.closed = False
        own.setblocking(False)
        with suppress(OSError):  # no TCP, as in tests
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self, into: memoryview, until_s: float | None = None) -> int:
        """Wait for bytes and return their number. Raise ConnectionClosed at the end of the stream
        or after `until_s`.
        """
        while not self.closed:
            try:
                with self._inside:
                    count = self._socket.recv_into(into)
            except Wants as error:
                self._wait(isinstance(error, ssl.SSLWantWriteError), until_s)
                continue
            except (OSError, ValueError) as error:
                raise ConnectionClosed(_why(error)) from None
            if count:
                return count
            raise ConnectionClosed("it closed the connection")
        raise ConnectionClosed("it is closed")

    def receive_all(self, into: memoryview, until_s: float | None = None) -> None:
        """Receive until the memory is full."""
        while into:
            into = into[self.receive(into, until_s) :]

    def send(self, *pieces: bytes | memoryview, until_s: float | None = None) -> None:
        """Send pieces in order; the calling thread holds the lock. Raise ConnectionClosed if the
        connection is closed.
        """
        left, self._left = self._left, b""
        for piece in (left, *pieces):
            rest = memoryview(piece)
            while rest:
                count = self._send_some(rest)
                rest = rest[count:]
                if not count:
                    self._wait(True, until_s)

    def attempt(self, piece: bytes) -> None:
        """Send a few bytes unless another thread sends or the buffer is full: then other bytes are
        being sent anyway.
        """
        if not self.lock.attempt():
            return
        try:
            begun = bool(self._left) or isinstance(self._socket, ssl.SSLSocket)
            piece = self._left or piece
            sent = self._send_some(memoryview(piece))
            # OpenSSL requires that an incomplete write is repeated with equal data
            self._left = piece[sent:] if sent or begun else b""
        finally:
            self.lock.release()

    def _send_some(self, piece: memoryview) -> int:
        if self.closed:
            raise ConnectionClosed("it is closed")
        try:
            with self._inside:
                return self._socket.send(piece)
        except Wants:
            return 0
        except (OSError, ValueError) as error:
            raise ConnectionClosed(_why(error)) from None

    def readable(self) -> bool:
        """Return True if received bytes are unread."""
        with suppress(OSError, ValueError):
            return _ready(self._socket, False, 0)
        return False

    def taken_bytes(self) -> int:
        """Return the number of bytes that the peer's system has acknowledged; 0 if the system does
        not report it.
        """
        if sys.platform == "linux":
            with suppress(OSError, struct.error):
                about = self._socket.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, _TAKEN_AT + _TAKEN.size
                )
                return int(_TAKEN.unpack_from(about, _TAKEN_AT)[0])
        return 0

    def _wait(self, write: bool, until_s: float | None) -> None:
        left = POLL_S if write else None
        if until_s is not None:
            left = until_s - time.monotonic()
            if left <= 0:
                raise ConnectionClosed("it took too long")
        try:
            _ready(self._socket, write, left)
        except (OSError, ValueError) as error:
            raise ConnectionClosed(_why(error)) from None

    def shut(self) -> None:
        """Shut down both directions and wake waiting threads; `close` frees the socket
        afterwards.
        """
        self.closed = True
        with suppress(OSError):
            # the method of plain sockets: TLS's own would expose ciphertext to readers
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket."""
        self.shut()
        with self._inside, suppress(OSError):
            self._socket.close()


def _ready(own: socket.socket, write: bool, seconds: float | None) -> bool:
    """Wait until a socket is readable or writable."""
    if own.fileno() < 0:
        raise ValueError("it is closed")
    if not hasattr(select, "poll"):
        found = select.select([] if write else [own], [own] if write else [], [], seconds)
        return bool(found[0] or found[1])
    poll = select.poll()
    poll.register(own, select.POLLOUT if write else select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0, int(seconds * 1000 + 1))))


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
