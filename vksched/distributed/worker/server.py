"""Server: a node's listener, and the sessions of those who connect.

    caller --hello--> Session          all that a caller has here ends with its connection
    other node --hello, for a caller--> values for the session of that caller

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
from .session import Here, Session

FREED_S = 60.0
"""How long a caller that connects again waits for what it had to be freed."""
MAX_CALLERS = 1 << 9
"""That have something here."""


class Server:
    """Serves the devices of this computer.

    Raises:
        DeviceError: the address cannot be listened at.
    """

    def __init__(self, here: Here, address: tuple[str, int]) -> None:
        self._here = here
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[str, Stream] = {}
        """Of callers that connect again, the last connection; an earlier one is given up."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        mine = hello("node", here.name, "")
        self._listener = Listener(address, here.security, mine, self._welcome)
        self.address = self._listener.address

    @property
    def callers(self) -> int:
        """How many callers have something here."""
        with self._lock:
            return len(self._sessions)

    def close(self) -> None:
        """Ends all sessions, and waits until what they had is free."""
        self._listener.close()
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            sessions = list(self._sessions.values())
        for each in sessions:
            each.close()
        self.wait_until_free()

    def wait_until_free(self) -> None:
        """Waits until no caller has anything here."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions)

    def _welcome(self, stream: Stream, theirs: Fields) -> None:
        if theirs["role"] == "caller":
            self._take_caller(stream, theirs["caller"])
        else:
            self._take_peer(stream, theirs)

    def _take_caller(self, stream: Stream, caller: str) -> None:
        session = Session(self._here, caller, self._end)
        with self._changed:
            # one that connects again has left the earlier connection, which is noticed soon
            before, self._waiting[caller] = self._waiting.get(caller), stream
            if before is not None:
                before.close()
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_settled(caller, stream), FREED_S)
            mine = self._waiting.get(caller) is stream
            if mine:
                del self._waiting[caller]
            full = len(self._sessions) >= MAX_CALLERS
            if self._closed.is_set() or not mine or full or caller in self._sessions:
                stream.close()
                return
            self._sessions[caller] = session
        session.start(Channel(stream, "", session))
        if self._closed.is_set():  # meanwhile, when nothing was there to be closed
            session.close()

    def _is_settled(self, caller: str, stream: Stream) -> bool:
        """Whether a caller that connects need not wait any more."""
        given_up = self._waiting.get(caller) is not stream
        return self._closed.is_set() or given_up or caller not in self._sessions

    def _take_peer(self, stream: Stream, theirs: Fields) -> None:
        with self._lock:
            session = self._sessions.get(theirs["caller"])
        if session is None:  # its caller is gone
            stream.close()
            return
        session.take_peer(stream, theirs["name"], theirs["pair"])

    def _end(self, session: Session) -> None:
        with self._changed:
            self._sessions.pop(session.caller, None)
            self._changed.notify_all()
