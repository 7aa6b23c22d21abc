"""Server: one thread that tells of this process's schedulers to whoever of this user connects.

    Scheduler(monitor=True) --start--> Watch --.     twice a second      .--> client 1
    Scheduler(monitor=True) --start--> Watch --+--> one line of JSON ----+--> client 2
                                                                         '--> slow: misses lines

Problem: a client that is slow, stuck or hostile must cost a run nothing. Method: runs never meet
clients. The thread writes without waiting. A client has at most one line on its way; one that does
not take it in time is cut off, and so is one that says anything. A forked child closes its copies
and tells of nothing until it opens a scheduler of its own. Examples: tests/monitor/test_server.py.
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
"""How long a client may leave a line lying."""
JOIN_S = 2.0

_STARTED_S = time.time()


@dataclass(slots=True)
class _Client:
    """left: of the line on its way. since_s: when that began."""

    socket: socket.socket
    left: bytes = b""
    since_s: float = 0.0


class Server:
    """The socket of this process, and the thread behind it."""

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
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread and removes the socket."""
        self._ending = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(JOIN_S)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def abandon(self) -> None:
        """In a forked child: closes its copies; the parent's go on."""
        for each in (self._listening, self._wake, self._woken):
            each.close()
        for client in self._clients.values():
            client.socket.close()

    # -- on the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listening, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                self._serve(selector)
        except Exception as error:  # the runs go on
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
                    self._drop(selector, key.fd)  # it hung up, or talks, which nobody asked for
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
        except OSError:  # it hung up already, or there are no more files, for a while: till a tick
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
        """Returns what there is to tell; made anew once in a tick at most, whoever connects."""
        now_s = time.monotonic()
        if now_s - self._line_cache[0] > TICK_S / 2 or not self._line_cache[1]:
            looks = map(_look, list(self.watches)[:SCHEDULERS])
            snapshots = tuple(look for look in looks if look is not None)
            about = os.getpid(), _program(), _STARTED_S, time.time(), TICK_S
            self._line_cache = now_s, encode(ProcessNow(FORMAT, __version__, *about, snapshots))
        return self._line_cache[1]


def _look(watch: Watch) -> SchedulerNow | None:
    """Returns what a scheduler does; None where it cannot be told now, as it is being closed."""
    try:
        return watch.look()
    except Exception:
        return None


def _program() -> str:
    """Returns what was started, as `python -m` and scripts have it."""
    name, *words = sys.argv or [""]
    if name in ("", "-c"):
        name = "python"
    elif os.path.basename(name) == "__main__.py":
        name = os.path.dirname(name)
    return text(" ".join([os.path.basename(name), *words[:1]]))


# -- of this process -------------------------------------------------------------------------------

_lock = threading.Lock()
_server: Server | None = None


def start(watch: Watch) -> None:
    """Has a scheduler told of. Where that cannot be, it is a warning: no run depends on it."""
    global _server
    try:
        with _lock:
            if _server is None or not _server.works:
                _server = Server(() if _server is None else _server.watches)
            _server.watches.append(watch)
    except (VkschedError, OSError, RuntimeError) as error:  # no socket, no thread
        warn(f"[monitor] the scheduler is not told of: {error}")


def stop(watch: Watch) -> None:
    """Tells of a scheduler no more; the socket ends with the last one."""
    global _server
    with _lock:
        if _server is None:
            return
        left = [each for each in _server.watches if each is not watch and not each.gone]
        _server.watches = left
        if not left:
            _server.close()  # before another one may begin, whose socket has the same name
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
