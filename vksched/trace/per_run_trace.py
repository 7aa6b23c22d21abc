"""Gathered: the events of one run, kept until it is over, where only a part of it is carried out.

    run on this thread --emit--> events of this thread --> who asked tells them as a whole

Runs of other threads go on beside it, each with events of its own. Examples:
tests/trace/test_gathered.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .events import Clock, Event, Trace


class GatheredTrace(Trace):
    """A trace without sinks: it is active on threads that gather, and makes no events on others."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._here = threading.local()

    @property
    def active(self) -> bool:
        return getattr(self._here, "events", None) is not None

    def emit(self, event: Event) -> None:
        events: list[Event] | None = getattr(self._here, "events", None)
        if events is not None:
            events.append(event)

    @contextmanager
    def gathering(self, wanted: bool) -> Iterator[list[Event]]:
        """Give a list that takes the events of this thread until the block ends; none if they are
        not wanted.
        """
        events: list[Event] = []
        self._here.events = events if wanted else None
        try:
            yield events
        finally:
            self._here.events = None
