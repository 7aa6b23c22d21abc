"""A proxy that ends connections after some bytes, or holds them up, as broken networks do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from relays import Relay, shut

PIECE = 1 << 16


class Proxy(Relay):
    """Listens at `address` and passes all on to another one. cut_after: so many bytes, both ways
    together, and all connections end, and new ones with them; None: never. slow: bytes at a time.
    """

    def __init__(self, target: tuple[str, int], cut_after: int | None = None, slow: int = PIECE):
        self._target, self._slow = target, slow
        self.cut_after = cut_after
        self.passed = 0
        super().__init__("proxy")

    def _accept(self) -> None:
        while True:
            try:
                own, _ = self._listening.accept()
                other = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._sockets += [own, other]
                for pair in ((own, other), (other, own)):
                    thread = threading.Thread(target=self._pump, args=pair)
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(self._slow):
                with self._lock:
                    left = len(piece) if self.cut_after is None else self.cut_after - self.passed
                    self.passed += len(piece)
                target.sendall(piece[: max(left, 0)])
                if left < len(piece):
                    self._cut()
                    return
        shut(source, target)

    def _cut(self) -> None:
        with self._lock:
            shut(*self._sockets)
