"""Per-run trace: the events of one run on this thread, collected until the run ends.

    run on this thread --emit--> events of this thread --> the collector emits them as a whole

A worker uses it to run a part of a plan. Concurrent runs of other threads collect events of their
own. Examples: tests/trace/test_gathered.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .events import Clock, Event, Trace


class GatheredTrace(Trace):
    """A trace without sinks. It is active on collecting threads, and inactive on others."""

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
        """Yield a list that collects the events of this thread until the block ends; without
        `wanted` it stays empty.
        """
        events: list[Event] = []
        self._here.events = events if wanted else None
        try:
            yield events
        finally:
            self._here.events = None
