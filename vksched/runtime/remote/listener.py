"""Listener: who may come in.

    connect --a thread of its own--> Security.accept --> hello --> equal? --> welcome(stream, hello)

Strangers cost little: a few at a time, each for a few seconds, and none keeps others out for longer
than that. A failure of one never ends the listener. Examples:
tests/runtime/remote/test_strangers.py.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from ...errors import DeviceError
from ...trace import warn
from .hello import exchange, require_equal
from .messages import Fields
from .secure import Security, place_text
from .stream import Closed, Stream

STRANGERS = 32
"""Connections that have not proved themselves yet; more wait, or are refused by the system."""
RETRY_S = 0.1
"""After an accept that failed, as where there are no more files."""

Welcome = Callable[[Stream, Fields], None]


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
            self._socket = socket.create_server(address, family=family, backlog=STRANGERS)
        except OSError as error:
            raise DeviceError(
                f"[cluster] cannot listen at {place_text(address)}: {error.strerror or error}; try "
                "an address of this computer, or another port"
            ) from error
        host, port = self._socket.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        self._places = threading.BoundedSemaphore(STRANGERS)
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
            self._places.acquire()
            try:
                own, _ = self._socket.accept()
                threading.Thread(
                    target=self._take_in, args=(own,), name="vksched-door", daemon=True
                ).start()
            except (OSError, RuntimeError):  # no files or threads left, for a while
                self._places.release()
                self._ended.wait(RETRY_S)

    def _take_in(self, own: socket.socket) -> None:
        try:
            stream = self._security.accept(own)
        except Closed:
            return
        finally:
            self._places.release()
        try:
            theirs = exchange(stream, self._mine)
            require_equal(self._mine, theirs, "the other end")
            self._welcome(stream, theirs)
        except (Closed, DeviceError):  # the other end tells its user
            stream.close()
        except Exception as error:
            stream.close()
            warn(f"[cluster] a connection failed: {error!r}")
