"""Client: read the snapshots of this user's processes.

    folder of sockets --appear, vanish--> Connection, ... --lines--> ProcessNow, the latest of each

Snapshots are untrusted: the length of a line is bounded, and an invalid one closes its connection.

Examples: tests/monitor/test_client.py.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from pathlib import Path

from ..common.errors import VkschedError
from . import socket_dir
from .top.snapshot import LINE_BYTES, ProcessNow, decode

READ_BYTES = 1 << 16


class Connection:
    """A connection to one process. newest: its last snapshot. problem: why it is closed, or ""."""

    def __init__(self, pid: int, path: Path) -> None:
        self.pid = pid
        self.newest: ProcessNow | None = None
        self.problem = ""
        self.inode = path.lstat().st_ino if path.exists() else 0
        self.socket = socket_dir.connect(path)
        self._text = bytearray()

    @property
    def open(self) -> bool:
        return self.socket.fileno() >= 0

    def close(self) -> None:
        self.socket.close()

    def read(self) -> None:
        """Read available bytes; an error closes the connection."""
        try:
            received = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"process {self.pid}: {error.strerror}")
            return
        if not received:
            self._end("")
            return
        self._text += received
        *lines, rest = self._text.split(b"\n")
        self._text = bytearray(rest)
        try:
            if max(map(len, (*lines, rest))) >= LINE_BYTES:
                raise VkschedError(f"[top] expected lines of at most {LINE_BYTES} bytes, got more")
            if lines:
                self.newest = decode(bytes(lines[-1]))
        except VkschedError as error:
            self._end(f"process {self.pid}: {error}")

    def _end(self, problem: str) -> None:
        self.problem = problem
        self.close()


class Client:
    """Connections to all monitored processes of this user, or to one. problems: errors of other
    processes, the newest last.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._connections: dict[int, Connection] = {}
        self._bad: set[tuple[int, int]] = set()
        """Processes, with their sockets, that are not connected again."""
        self.problems: list[str] = []
        self.selector = selectors.DefaultSelector()

    def look_for_new(self) -> None:
        """Connect to new processes.

        Raise VkschedError if other users may write to the folder, or the only process is missing.
        """
        if self._pid is not None:
            if not self._connections:
                self._connect(self._pid, socket_dir.socket_path(self._pid))
            return
        for pid, path in socket_dir.sockets().items():
            if pid in self._connections:
                continue
            try:
                key = pid, path.lstat().st_ino
            except OSError:
                continue
            try:
                if key not in self._bad:
                    self._connect(pid, path)
            except VkschedError as error:
                if os.path.lexists(path):  # else its process has ended
                    self._bad.add(key)
                    self._note(str(error))

    def _connect(self, pid: int, path: Path) -> None:
        found = self._connections[pid] = Connection(pid, path)
        self.selector.register(found.socket, selectors.EVENT_READ, found)

    def _note(self, problem: str) -> None:
        self.problems = [*self.problems[-7:], problem]

    def read(self, timeout_s: float) -> bool:
        """Read lines until a timeout; return True if another file in the selector is ready."""
        other = False
        for key, _ in self.selector.select(max(0.0, timeout_s)):
            if isinstance(key.data, Connection):
                self._handle(key.data)
            else:
                other = True
        return other

    def _handle(self, connection: Connection) -> None:
        number = connection.socket.fileno()
        connection.read()
        if not connection.open:
            self.selector.unregister(number)
            del self._connections[connection.pid]
            if connection.problem:
                self._bad.add((connection.pid, connection.inode))
                self._note(connection.problem)

    def processes(self) -> list[ProcessNow]:
        """Return the last snapshot of each process, by process id."""
        newest = (found.newest for _, found in sorted(self._connections.items()))
        return [each for each in newest if each is not None]

    def wait_for_all(self, limit_s: float) -> list[ProcessNow]:
        """Return the snapshots of all processes that send one before a timeout."""
        self.look_for_new()
        end_s = time.monotonic() + limit_s
        while len(self.processes()) < len(self._connections) and time.monotonic() < end_s:
            self.read(end_s - time.monotonic())
        return self.processes()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        with contextlib.suppress(OSError):
            self.selector.close()
