"""Quota: limit the pending requests of one connection.

A peer that sends requests without end and reads no responses would fill the memory of a worker.
Drivers of this version use a few threads; a peer above the limits closes its own connection.
Examples: tests/distributed/test_hostile_clients.py.
"""

from __future__ import annotations

import threading

from ...common.schema import SchemaError

MAX_ASKED = 1 << 10
"""Maximum number of pending requests of a driver."""
MAX_BYTES = 1 << 28
"""Maximum size of their documents and echoes together."""


class Quota:
    """The quota of one connection."""

    def __init__(self, most: int = MAX_ASKED, most_bytes: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._count = self._bytes = 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """Count a request.

        Raises
        ------
        SchemaError
            Too many requests are pending.
        """
        with self._lock:
            if self._count >= self._most:
                raise SchemaError(f"expected at most {self._most} questions at once")
            self._count += 1

    def take_bytes(self, size_bytes: int) -> None:
        """Count the payload of an incoming request.

        Raises
        ------
        SchemaError
            The pending requests have too many bytes.
        """
        with self._lock:
            self._bytes += size_bytes
            if self._bytes > self._most_bytes:
                raise SchemaError(f"expected questions of at most {self._most_bytes} bytes at once")

    def release(self, size_bytes: int) -> None:
        """Release a request with a payload of `size_bytes`."""
        with self._lock:
            self._count -= 1
            self._bytes -= size_bytes
