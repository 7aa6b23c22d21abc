"""A relay: listens in front of a node, and passes on what comes as whoever makes one of it says."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Listens at `address` until `close`, which ends all connections. Begins at once, so what
    `_accept` needs is there before this is made.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listening.getsockname())
        self._threads = [threading.Thread(target=self._accept, name=name, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        shut(self._listening, *self._sockets)
        self._listening.close()
        for thread in self._threads:
            thread.join()
        for own in self._sockets:
            own.close()

    def _accept(self) -> None:
        """Takes connections in until nobody listens any more."""
        raise NotImplementedError


def shut(*sockets: socket.socket) -> None:
    """Ends connections, those too that have ended."""
    for own in sockets:
        with suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)
