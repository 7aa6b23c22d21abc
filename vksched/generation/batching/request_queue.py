"""RequestQueue: the requests that wait for a slot, first in, first out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...common.errors import QueueFull
from .request_state import RequestState


class RequestQueue:
    """A bounded queue. All methods are thread-safe.

    Parameters
    ----------
    limit
        The maximum number of requests that wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: deque[RequestState] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(
        self,
        state: RequestState,
        free_slots: int,
        retry_after_s: Callable[[], float],
        is_reserved: bool = False,
    ) -> None:
        """Append a request.

        Parameters
        ----------
        free_slots
            The number of idle slots: the first requests of the queue get them at once.
        is_reserved
            The request has a place, whatever the limit.

        Raises
        ------
        QueueFull
            `limit` requests are waiting.
        """
        with self._lock:
            if len(self._waiting) >= self.limit + free_slots:
                self._drop_closed()
            if is_reserved or len(self._waiting) < self.limit + free_slots:
                self._waiting.append(state)
                return
        raise self.full(retry_after_s())

    def room(self, free_slots: int) -> int:
        """Return the number of requests that `push` would accept."""
        with self._lock:
            open_ = sum(not state.close_reason for state in self._waiting)
        return max(0, self.limit + free_slots - open_)

    def full(self, after_s: float) -> QueueFull:
        """Return the error of a full queue. after_s: the time until it has a place."""
        return QueueFull(
            f"[engine] expected at most {self.limit} waiting requests, got another one; try again "
            f"in about {after_s:.0f} s, or a larger queue",
            after_s,
        )

    def adopt(self, state: RequestState) -> None:
        """Append a request that another engine had accepted, whatever the limit."""
        with self._lock:
            self._waiting.append(state)

    def states(self) -> list[RequestState]:
        """Return the waiting requests."""
        with self._lock:
            return list(self._waiting)

    def pop(self) -> RequestState | None:
        """Return the first request that was not cancelled, or None."""
        with self._lock:
            while self._waiting:
                state = self._waiting.popleft()
                if not state.close_reason:
                    return state
                state.end(state.close_reason)
        return None

    def pop_all(self) -> list[RequestState]:
        with self._lock:
            states = list(self._waiting)
            self._waiting.clear()
        return states

    def _drop_closed(self) -> None:
        for state in [s for s in self._waiting if s.close_reason]:
            self._waiting.remove(state)
            state.end(state.close_reason)
