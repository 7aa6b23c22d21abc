"""Stream: bytes to and from one other process, over a socket with or without TLS.

    reader thread --receive--> memory         senders --lock.acquire--> send --> socket

Problem: one thread reads while others write, and OpenSSL lets one call at a time enter a
connection. Method: the socket never blocks. A call enters, does what can be done at once, and
leaves; whoever has to wait does so outside, by `poll`. Examples:
tests/distributed/test_channel.py.
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
"""After so long a sender that waits looks whether the connection is closed."""
_TAKEN, _TAKEN_AT = struct.Struct("=Q"), 120
"""`tcpi_bytes_acked` in Linux's `struct tcp_info`."""
Wants = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


class Closed(Exception):
    """The connection is gone; the text says why."""


class FairLock:
    """A lock that those who wait get in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def attempt(self) -> bool:
        """Take it where nobody has it and nobody waits."""
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
        """Hand it to who has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class Stream:
    """lock: held by who sends. One thread alone receives."""

    def __init__(self, own: socket.socket) -> None:
        self.lock = FairLock()
        self._socket = own
        self._inside: AbstractContextManager[object] = (
            threading.Lock() if isinstance(own, ssl.SSLSocket) else nullcontext()
        )
        self._left = b""
        """Of a beat that did not go out whole."""
        self.closed = False
        own.setblocking(False)
        with suppress(OSError):  # no TCP, as in tests
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self, into: memoryview, until_s: float | None = None) -> int:
        """Wait for bytes and returns how many came.

        Raises:
            Closed: there are no more, or the time is over.
        """
        while not self.closed:
            try:
                with self._inside:
                    count = self._socket.recv_into(into)
            except Wants as error:
                self._wait(isinstance(error, ssl.SSLWantWriteError), until_s)
                continue
            except (OSError, ValueError) as error:
                raise Closed(_why(error)) from None
            if count:
                return count
            raise Closed("it hung up")
        raise Closed("it is closed")

    def receive_all(self, into: memoryview, until_s: float | None = None) -> None:
        """Fills memory."""
        while into:
            into = into[self.receive(into, until_s) :]

    def send(self, *pieces: bytes | memoryview, until_s: float | None = None) -> None:
        """Send bytes, one piece behind the other. The calling thread holds the lock.

        Raises:
            Closed: the connection is gone.
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
        """Send a few bytes unless somebody else sends, or there is no room: then bytes are on
        their way anyway.
        """
        if not self.lock.attempt():
            return
        try:
            begun = bool(self._left) or isinstance(self._socket, ssl.SSLSocket)
            piece = self._left or piece
            sent = self._send_some(memoryview(piece))
            # what TLS has been asked to send must be asked for again
            self._left = piece[sent:] if sent or begun else b""
        finally:
            self.lock.release()

    def _send_some(self, piece: memoryview) -> int:
        if self.closed:
            raise Closed("it is closed")
        try:
            with self._inside:
                return self._socket.send(piece)
        except Wants:
            return 0
        except (OSError, ValueError) as error:
            raise Closed(_why(error)) from None

    def readable(self) -> bool:
        """Whether bytes lie here that nobody has read."""
        with suppress(OSError, ValueError):
            return _ready(self._socket, False, 0)
        return False

    def taken_bytes(self) -> int:
        """How much of what was sent the other end's system has taken; 0 where this one does not
        tell.
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
                raise Closed("it took too long")
        try:
            _ready(self._socket, write, left)
        except (OSError, ValueError) as error:
            raise Closed(_why(error)) from None

    def shut(self) -> None:
        """Ends both ways and wakes who waits; `close` frees the socket when nobody does."""
        self.closed = True
        with suppress(OSError):
            # the method of plain sockets: that of TLS would let readers see what is encrypted
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket."""
        self.shut()
        with self._inside, suppress(OSError):
            self._socket.close()


def _ready(own: socket.socket, write: bool, seconds: float | None) -> bool:
    """Wait until a socket can be read or written."""
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
