"""Quota: how much of one connection may wait for a thread.

Whoever asks without end and reads no answers would fill the memory of a worker with what waits.
Drivers of this version ask of a few threads; whoever asks more ends its own connection. Examples:
tests/distributed/test_hostile_clients.py.
"""

from __future__ import annotations

import threading

from ...common.schema import Wrong

MAX_ASKED = 1 << 10
"""Questions of a driver that wait or are being answered."""
MAX_BYTES = 1 << 28
"""Of their documents and echoes together."""


class Quota:
    """Of one connection."""

    def __init__(self, most: int = MAX_ASKED, most_bytes: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._count = self._bytes = 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """Count a question.

        Raises
        ------
        Wrong
            Too many wait.
        """
        with self._lock:
            if self._count >= self._most:
                raise Wrong(f"expected at most {self._most} questions at once")
            self._count += 1

    def take_bytes(self, size_bytes: int) -> None:
        """Count the payload of a question that is on its way.

        Raises
        ------
        Wrong
            Those that wait have too many bytes together.
        """
        with self._lock:
            self._bytes += size_bytes
            if self._bytes > self._most_bytes:
                raise Wrong(f"expected questions of at most {self._most_bytes} bytes at once")

    def release(self, size_bytes: int) -> None:
        """Count a question no more, whose payload had so many bytes."""
        with self._lock:
            self._count -= 1
            self._bytes -= size_bytes
