"""LingeringTransport: a connection that is closed only once its client has stopped sending.

    close() --the request has arrived--> closed
        '---- the client still sends --end of the answer, the rest is dropped--> closed

The operating system resets a connection that is closed with unread data, and the client then loses
an answer that it has not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

IDLE_S = 5.0
"""The time without data after which a client counts as gone."""
MOST_S = 30.0
"""The time in which a client must stop sending."""
MOST_LINGERING = 16
"""The maximum number of lingering connections of a server; more are closed at once."""


class LingeringTransport:
    """A transport of a server. All methods but these are those of the transport itself.

    Parameters
    ----------
    sends
        Returns True while a part of the client's request is missing.
    lingering
        The lingering connections of the server, which all of its transports share.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        sends: Callable[[], bool],
        lingering: set[LingeringTransport],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._sends = sends
        self._lingering = lingering
        self._timer: asyncio.TimerHandle | None = None
        self._end_s = 0.0
        self._has_received = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def is_lingering(self) -> bool:
        """True if the answer has ended, and what arrives is dropped."""
        return self._timer is not None

    def is_closing(self) -> bool:
        """Return True once `close` was called."""
        return self.is_lingering or self._transport.is_closing()

    def drop(self, data: bytes) -> None:
        """Drop data that arrived after `close`."""
        self._has_received = True

    def close(self) -> None:
        """Close the connection. The first call waits for a client that still sends."""
        has_place = len(self._lingering) < MOST_LINGERING
        if self.is_closing() or not has_place or not self._sends():
            self.close_now()
            return
        self._lingering.add(self)
        self._end_s = self._loop.time() + MOST_S
        if self._transport.can_write_eof():  # TLS has no such end
            self._transport.write_eof()
        self._transport.resume_reading()
        self._wait()

    def close_now(self) -> None:
        """Close the connection, whether or not the client still sends."""
        if self._timer is not None:
            self._timer.cancel()
        self._lingering.discard(self)
        self._transport.close()

    def _wait(self) -> None:
        self._has_received = False
        self._timer = self._loop.call_later(IDLE_S, self._check)

    def _check(self) -> None:
        if self._has_received and self._loop.time() < self._end_s:
            self._wait()
        else:
            self.close_now()
