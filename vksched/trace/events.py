"""Events: records of a run with times, for any number of sinks, which cannot break the run.

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
    """The monotonic clock of the host."""

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
"""The names of all events; docs/guides/traces.md describes each."""


@dataclass(frozen=True, slots=True)
class Event:
    """A recorded event.

    Attributes
    ----------
    name
        One of NAMES.
    device
        The name of its device, or "host".
    start_s, end_s
        Seconds by the scheduler's clock.
    run
        The number of the run among the runs of its scheduler, or -1.
    plan
        The number of the executed plan among the plans of the process, or -1.
    fields
        Further data, as described in docs/guides/traces.md.
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
    """Passes events to sinks. A sink that raises is removed with a warning."""

    def __init__(self, clock: Clock | None = None, sinks: Iterable[Sink] = ()) -> None:
        self.clock: Clock = clock or SystemClock()
        self._sinks: list[Sink] = list(sinks)
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        return bool(self._sinks)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The current sinks."""
        return tuple(self._sinks)

    def add(self, sink: Sink) -> Sink:
        """Add a sink, and return it."""
        with self._lock:
            self._sinks = [*self._sinks, sink]
        return sink

    def remove(self, sink: Sink) -> None:
        """Remove a sink, if it is present."""
        with self._lock:
            self._sinks = [s for s in self._sinks if s is not sink]

    def emit(self, event: Event) -> None:
        """Pass an event to each sink in turn, on this thread."""
        for sink in self._sinks:
            try:
                sink(event)
            except KeyboardInterrupt:  # of the user, not of the sink
                raise
            except BaseException as error:
                self.remove(sink)
                (message,) = traceback.format_exception_only(type(error), error)[-1:]
                warn(f"[trace] a sink failed and was removed: {message.strip()}")


def as_trace(value: Trace | Sink | Sequence[Sink] | None) -> Trace:
    """Return a trace from a trace, a sink or several sinks."""
    if value is None or isinstance(value, Trace):
        return value or Trace()
    sinks = [value] if callable(value) else value
    if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
        raise PlanError(
            f"[Scheduler] expected a vs.Trace, a sink or a list of sinks, got {value!r}; try "
            "trace=vs.Tape()"
        )
    return Trace(sinks=sinks)
