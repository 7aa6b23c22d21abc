"""Server: the listener of a worker and the sessions of its clients.

    driver --hello--> Session          a driver's resources here are freed with its connection
    other worker --hello, for a driver--> values for the session of that driver

The reader thread of a connection handles brief messages itself; others go to threads of the
session, so that the preparation of one plan does not delay runs of another. Examples:
tests/distributed/test_node_server.py.
"""

from __future__ import annotations

import threading

from ..wire.channel import Channel
from ..wire.handshake import hello
from ..wire.listener import Listener
from ..wire.messages import Fields
from ..wire.stream import Stream
from .session import Session, WorkerContext

FREED_S = 60.0
"""Maximum wait of a reconnecting driver until its previous session is freed."""
MAX_DRIVERS = 1 << 9
"""Maximum number of drivers with a session."""


class Server:
    """Serve the devices of this host. Raise DeviceError if the address cannot be bound."""

    def __init__(self, here: WorkerContext, address: tuple[str, int]) -> None:
        self._here = here
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[str, Stream] = {}
        """The last connection of each reconnecting driver; earlier ones are closed."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        mine = hello("worker", here.name, "")
        self._listener = Listener(address, here.security, mine, self._welcome)
        self.address = self._listener.address

    @property
    def drivers(self) -> int:
        """The number of drivers with a session here."""
        with self._lock:
            return len(self._sessions)

    def close(self) -> None:
        """Close all sessions and wait until their resources are freed."""
        self._listener.close()
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            sessions = list(self._sessions.values())
        for each in sessions:
            each.close()
        self.wait_until_free()

    def wait_until_free(self) -> None:
        """Wait until no driver has a session here."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions)

    def _welcome(self, stream: Stream, theirs: Fields) -> None:
        if theirs["role"] == "driver":
            self._accept_driver(stream, theirs["driver"])
        else:
            self._accept_peer(stream, theirs)

    def _accept_driver(self, stream: Stream, driver: str) -> None:
        session = Session(self._here, driver, self._end)
        with self._changed:
            # a reconnecting driver has closed its earlier connection, which is detected soon
            before, self._waiting[driver] = self._waiting.get(driver), stream
            if before is not None:
                before.close()
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_settled(driver, stream), FREED_S)
            mine = self._waiting.get(driver) is stream
            if mine:
                del self._waiting[driver]
            full = len(self._sessions) >= MAX_DRIVERS
            if self._closed.is_set() or not mine or full or driver in self._sessions:
                stream.close()
                return
            self._sessions[driver] = session
        session.start(Channel(stream, "", session))
        if self._closed.is_set():  # closed meanwhile, before there was a session to close
            session.close()

    def _is_settled(self, driver: str, stream: Stream) -> bool:
        """Return True if a connecting driver need not wait any more."""
        is_superseded = self._waiting.get(driver) is not stream
        return self._closed.is_set() or is_superseded or driver not in self._sessions

    def _accept_peer(self, stream: Stream, theirs: Fields) -> None:
        with self._lock:
            session = self._sessions.get(theirs["driver"])
        if session is None:  # its driver has no session
            stream.close()
            return
        session.accept_peer(stream, theirs["name"], theirs["pair"])

    def _end(self, session: Session) -> None:
        with self._changed:
            self._sessions.pop(session.driver, None)
            self._changed.notify_all()
