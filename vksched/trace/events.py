"""Events: what happened when, handed to any number of sinks, which cannot break a run.

    executor, planner, tuner --Event--> Trace --> tape, log, metrics, any function

Examples: tests/trace/test_sinks.py.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..common.errors import PlanError
from ..common.user_warning import warn


class Clock(Protocol):
    """Seconds from an arbitrary start; simulated in tests."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.perf_counter)


NAMES = (
    "plan",
    "fallback",
    "prepare",
    "submit",
    "copy",
    "wait",
    "split",
    "transfer_queue",
    "send",
    "recv",
    "run",
    "failed",
    "host_op",
    "fault",
    "slowdown",
    "replan",
    "release",
    "tune",
    "calibrate",
)
"""Of all events; docs/guides/traces.md says what each one tells."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. name: one of NAMES.

    device: where, or "host". start_s, end_s: by the scheduler's clock. run: the number of the run
    among those of its scheduler, or -1. plan: the number of the plan that was carried out, among
    those of the process, or -1. fields: what the event tells besides, by docs/guides/traces.md.
    """

    name: str
    device: str
    start_s: float
    end_s: float
    run: int = -1
    fields: Mapping[str, object] = field(default_factory=dict)
    plan: int = -1


Sink = Callable[[Event], object]


class Trace:
    """Hands events to sinks; the sink that raises is dropped with a warning."""

    def __init__(self, clock: Clock | None = None, sinks: Iterable[Sink] = ()) -> None:
        self.clock: Clock = clock or SystemClock()
        self._sinks: list[Sink] = list(sinks)
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        return bool(self._sinks)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks that events go to now."""
        return tuple(self._sinks)

    def add(self, sink: Sink) -> Sink:
        """Add a sink and returns it."""
        with self._lock:
            self._sinks = [*self._sinks, sink]
        return sink

    def remove(self, sink: Sink) -> None:
        """Take a sink away; one that is not there is ignored."""
        with self._lock:
            self._sinks = [s for s in self._sinks if s is not sink]

    def emit(self, event: Event) -> None:
        """Hand an event to each sink, one after the other, on this thread."""
        for sink in self._sinks:
            try:
                sink(event)
            except KeyboardInterrupt:  # the user's, not the sink's
                raise
            except BaseException as error:
                self.remove(sink)
                (message,) = traceback.format_exception_only(type(error), error)[-1:]
                warn(f"[trace] a sink failed and was removed: {message.strip()}")


def as_trace(value: Trace | Sink | Sequence[Sink] | None) -> Trace:
    """Return a trace, of a trace, of one sink or of several."""
    if value is None or isinstance(value, Trace):
        return value or Trace()
    sinks = [value] if callable(value) else value
    if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
        raise PlanError(
            f"[Scheduler] expected a vs.Trace, a sink or a list of sinks, got {value!r}; try "
            "trace=vs.Tape()"
        )
    return Trace(sinks=sinks)
