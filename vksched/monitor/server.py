"""Server: one thread that sends snapshots of this process's schedulers to clients of this user.

    Scheduler(monitor=True) --start--> Watch --.     twice a second      .--> client 1
    Scheduler(monitor=True) --start--> Watch --+--> one line of JSON ----+--> client 2
                                                                         '--> slow: misses lines

Problem: a slow, stuck or hostile client must not slow runs. Method: runs never interact with
clients. The thread writes without blocking. A client has at most one pending line; one that does
not read it in time, or that sends anything, is disconnected. A forked child closes its copies and
serves nothing until it opens a scheduler. Examples: tests/monitor/test_server.py.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ..common.errors import VkschedError
from ..common.fork_guard import in_child
from ..common.user_warning import warn
from ..common.version import __version__
from . import socket_dir
from .activity import TICK_S
from .top.snapshot import FORMAT, SCHEDULERS, ProcessNow, SchedulerNow, encode, text
from .watch import Watch

CLIENTS = 8
STUCK_S = 10.0
"""Maximum seconds for which a line may stay pending."""
JOIN_S = 2.0

_STARTED_S = time.time()


@dataclass(slots=True)
class _Client:
    """left: unsent rest of the current line. since_s: time when its transmission began."""

    socket: socket.socket
    left: bytes = b""
    since_s: float = 0.0


class Server:
    """The socket of this process and its thread."""

    def __init__(self, watches: Iterable[Watch] = ()) -> None:
        self.watches = list(watches)
        self._listening, self._path = socket_dir.listen(os.getpid(), CLIENTS)
        self._wake, self._woken = socket.socketpair()
        self._clients: dict[int, _Client] = {}
        self._ending = False
        self._line_cache: tuple[float, bytes] = (0.0, b"")
        self._thread = threading.Thread(target=self._work, name="vksched-monitor", daemon=True)
        self._thread.start()

    @property
    def works(self) -> bool:
        """Return True if the thread is running."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread and remove the socket."""
        self._ending = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(JOIN_S)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def abandon(self) -> None:
        """Close the copies in a forked child; those of the parent continue."""
        for each in (self._listening, self._wake, self._woken):
            each.close()
        for client in self._clients.values():
            client.socket.close()

    # -- server thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listening, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                self._serve(selector)
        except Exception as error:  # runs continue
            warn(f"[monitor] it ended: {error!r}")
        finally:
            for each in (self._listening, self._wake, self._woken):
                each.close()
            for client in self._clients.values():
                client.socket.close()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        next_s = time.monotonic() + TICK_S
        while not self._ending:
            ready = selector.select(max(0.0, next_s - time.monotonic()))
            for key, events in ready:
                if key.fileobj is self._listening:
                    self._accept(selector)
                elif key.fd in self._clients and events & selectors.EVENT_READ:
                    # it disconnected, or sent something, which is not allowed
                    self._drop(selector, key.fd)
                elif key.fd in self._clients:
                    self._send(selector, key.fd)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + TICK_S
                self._tick(selector)
                if self._listening not in selector.get_map():
                    selector.register(self._listening, selectors.EVENT_READ)

    def _tick(self, selector: selectors.BaseSelector) -> None:
        if not self._clients:
            for watch in list(self.watches):
                watch.activity.drain()
            return
        line, now_s = self._line(), time.monotonic()
        for number, client in list(self._clients.items()):
            if not client.left:
                client.left, client.since_s = line, now_s
                self._send(selector, number)
            elif now_s - client.since_s > STUCK_S:
                self._drop(selector, number)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            own, _ = self._listening.accept()
        # it disconnected already, or no file descriptors are left: retry at the next tick
        except OSError:
            selector.unregister(self._listening)
            return
        if len(self._clients) >= CLIENTS or not socket_dir.is_mine(own):
            own.close()
            return
        own.setblocking(False)
        selector.register(own, selectors.EVENT_READ)
        self._clients[own.fileno()] = _Client(own, self._line(), time.monotonic())
        self._send(selector, own.fileno())

    def _send(self, selector: selectors.BaseSelector, number: int) -> None:
        client = self._clients[number]
        try:
            client.left = client.left[client.socket.send(client.left) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(selector, number)
            return
        more = selectors.EVENT_WRITE if client.left else 0
        selector.modify(client.socket, selectors.EVENT_READ | more)

    def _drop(self, selector: selectors.BaseSelector, number: int) -> None:
        client = self._clients.pop(number)
        selector.unregister(client.socket)
        client.socket.close()

    def _line(self) -> bytes:
        """Return the current line; it is updated at most once per tick."""
        now_s = time.monotonic()
        if now_s - self._line_cache[0] > TICK_S / 2 or not self._line_cache[1]:
            looks = map(_snapshot, list(self.watches)[:SCHEDULERS])
            snapshots = tuple(look for look in looks if look is not None)
            about = os.getpid(), _program(), _STARTED_S, time.time(), TICK_S
            self._line_cache = now_s, encode(ProcessNow(FORMAT, __version__, *about, snapshots))
        return self._line_cache[1]


def _snapshot(watch: Watch) -> SchedulerNow | None:
    """Return the snapshot of a scheduler, or None if it is being closed."""
    try:
        return watch.look()
    except Exception:
        return None


def _program() -> str:
    """Return the name of this program, as in `python -m` or a script."""
    name, *words = sys.argv or [""]
    if name in ("", "-c"):
        name = "python"
    elif os.path.basename(name) == "__main__.py":
        name = os.path.dirname(name)
    return text(" ".join([os.path.basename(name), *words[:1]]))


# -- process-wide server ---------------------------------------------------------------------------

_lock = threading.Lock()
_server: Server | None = None


def start(watch: Watch) -> None:
    """Start to publish a scheduler. A failure is only a warning, because no run depends on it."""
    global _server
    try:
        with _lock:
            if _server is None or not _server.works:
                _server = Server(() if _server is None else _server.watches)
            _server.watches.append(watch)
    except (VkschedError, OSError, RuntimeError) as error:  # no socket or thread
        warn(f"[monitor] the scheduler is not monitored: {error}")


def stop(watch: Watch) -> None:
    """Stop to publish a scheduler; the socket ends with the last one."""
    global _server
    with _lock:
        if _server is None:
            return
        left = [each for each in _server.watches if each is not watch and not each.gone]
        _server.watches = left
        if not left:
            _server.close()  # before another server, whose socket has an equal name, may start
            _server = None


@atexit.register
def _end() -> None:
    global _server
    with _lock:
        if _server is not None:
            _server.close()
            _server = None


@in_child
def _after_fork() -> None:
    global _lock, _server
    _lock = threading.Lock()
    if _server is not None:
        _server.abandon()
    _server = None
