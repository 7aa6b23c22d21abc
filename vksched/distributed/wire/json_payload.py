"""JSON payloads: parse documents of messages with bounded memory.

    bytes --brackets counted--> too many? SchemaError      else --budget--> json --checked--> data

Problem: `[],` takes 3 bytes in a document and 64 in memory, so that a document of 12 MiB takes 350.
Method: count lists and objects before parsing. All documents that a process parses share a memory
budget; a thread waits if the budget is spent. Complexity: O(bytes).

Examples: tests/distributed/test_json_payload.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...common.fork_guard import in_child
from ...common.schema import SchemaError, parse
from .stream import FairLock

MAX_CONTAINERS = 1 << 20
"""Maximum number of lists and objects in a document; a part of 100,000 nodes has about 800,000."""
CONTAINER_BYTES = 64
"""Minimum memory of an empty container."""
BYTES_EACH = 12
"""Maximum memory per byte of other JSON; the worst case is `"ab",`."""
PARSED_BYTES = 1 << 30
"""Maximum memory of all documents that are being parsed; a larger one is parsed alone."""


class Budget:
    """Bytes that threads share in order of arrival."""

    def __init__(self, most_bytes: int = PARSED_BYTES) -> None:
        self.most_bytes = most_bytes
        self.taken_bytes = 0
        self._line = FairLock()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Reserve bytes, or the whole budget if it is smaller."""
        size_bytes = min(size_bytes, self.most_bytes)
        with self._line, self._changed:
            self._changed.wait_for(lambda: self.taken_bytes + size_bytes <= self.most_bytes)
            self.taken_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self.taken_bytes -= size_bytes
                self._changed.notify_all()


BUDGET = Budget()
"""The budget of this process."""


def parsed_bytes(text: bytes, where: str) -> int:
    """Return the approximate memory of a parsed document.

    Raises
    ------
    SchemaError
        It has too many lists and objects.
    """
    containers = text.count(b"[") + text.count(b"{")
    if containers > MAX_CONTAINERS:
        raise SchemaError(
            f"expected at most {MAX_CONTAINERS} lists and objects in {where}, got {containers}"
        )
    return containers * CONTAINER_BYTES + len(text) * BYTES_EACH


@contextmanager
def room_for(text: bytes, where: str) -> Iterator[None]:
    """Reserve the memory of a document while it is parsed; see `parsed_bytes`."""
    with BUDGET.taken(parsed_bytes(text, where)):
        yield


def document_of(text: bytes, kind: object, where: str) -> Any:
    """Return the data of a document as a type; see `schema.parse`."""
    with room_for(text, where):
        return parse(text, kind, where)


@in_child
def _after_fork() -> None:
    BUDGET.__init__(BUDGET.most_bytes)  # type: ignore[misc]
