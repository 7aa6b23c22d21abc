"""Server: a worker's listener, and the sessions of those who connect.

    driver --hello--> Session          all that a driver has here ends with its connection
    other worker --hello, for a driver--> values for the session of that driver

The reader thread of a connection takes what is brief itself; what takes long goes to threads of the
session, so that no plan's preparation delays another's runs. Examples:
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
"""How long a driver that connects again waits for what it had to be freed."""
MAX_DRIVERS = 1 << 9
"""That have something here."""


class Server:
    """Serves the devices of this computer.

    Raises:
        DeviceError: the address cannot be listened at.
    """

    def __init__(self, here: WorkerContext, address: tuple[str, int]) -> None:
        self._here = here
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[str, Stream] = {}
        """Of drivers that connect again, the last connection; an earlier one is given up."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        mine = hello("worker", here.name, "")
        self._listener = Listener(address, here.security, mine, self._welcome)
        self.address = self._listener.address

    @property
    def drivers(self) -> int:
        """How many drivers have something here."""
        with self._lock:
            return len(self._sessions)

    def close(self) -> None:
        """End all sessions, and waits until what they had is free."""
        self._listener.close()
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            sessions = list(self._sessions.values())
        for each in sessions:
            each.close()
        self.wait_until_free()

    def wait_until_free(self) -> None:
        """Wait until no driver has anything here."""
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
            # one that connects again has left the earlier connection, which is noticed soon
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
        if self._closed.is_set():  # meanwhile, when nothing was there to be closed
            session.close()

    def _is_settled(self, driver: str, stream: Stream) -> bool:
        """Whether a driver that connects need not wait any more."""
        is_superseded = self._waiting.get(driver) is not stream
        return self._closed.is_set() or is_superseded or driver not in self._sessions

    def _accept_peer(self, stream: Stream, theirs: Fields) -> None:
        with self._lock:
            session = self._sessions.get(theirs["driver"])
        if session is None:  # its driver is gone
            stream.close()
            return
        session.accept_peer(stream, theirs["name"], theirs["pair"])

    def _end(self, session: Session) -> None:
        with self._changed:
            self._sessions.pop(session.driver, None)
            self._changed.notify_all()
