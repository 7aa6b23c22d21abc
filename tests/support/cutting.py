"""A proxy that ends connections after some bytes, or holds them up, as broken networks do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PIECE = 1 << 16


class Proxy:
    """Listens at `address` and passes all on to another one. cut_after: so many bytes, both ways
    together, and all connections end, and new ones with them; None: never. slow: bytes at a time.
    """

    def __init__(self, target: tuple[str, int], cut_after: int | None = None, slow: int = PIECE):
        self._target, self._slow = target, slow
        self.cut_after = cut_after
        self.passed = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listening.getsockname())
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for own in [self._listening, *self._sockets]:
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()
        for own in self._sockets:
            own.close()

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
        for own in (source, target):
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

    def _cut(self) -> None:
        with self._lock:
            for own in self._sockets:
                with suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)
