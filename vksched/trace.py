"""Trace: what happened when, as events for any number of sinks, which cannot break a run."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from types import FrameType
from typing import Protocol

from .errors import PlanError, VkschedError


class VkschedWarning(UserWarning):
    """Something works, but not as well as the user may expect; the text says why and what to do."""


def warn(text: str) -> None:
    """Warns as `warn_user` does, but never raises: for faults that a run survives, for worker
    threads, and midway through freeing. Where warnings are errors, it logs the text.
    """
    try:
        warn_user(text)
    except VkschedWarning:
        logging.getLogger("vksched").warning(text)  # on stderr, unless the program says otherwise


def warn_user(text: str) -> None:
    """Warns at the first line outside of the package, however deep below it the call is. A worker
    thread has no such line: there it warns at the line that calls this.
    """
    modules: list[str] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    package = __name__.partition(".")[0]
    theirs = next((m for m in modules if m.partition(".")[0] != package), _WORKERS[0])
    if theirs in _WORKERS:
        theirs = next((m for m in modules if m != __name__), __name__)
    warnings.warn(text, VkschedWarning, stacklevel=1 + modules.index(theirs))


_WORKERS = ("concurrent.futures.thread", "threading")
"""Modules whose lines are the first ones outside the package in a worker thread."""


class Clock(Protocol):
    """Seconds from an arbitrary start; simulated in tests."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.perf_counter)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time. name: "split", "wait", "copy", "run", "step", "fault", "slow",
    "replan", "tune" or "calibrate".

    device: where, or "host". run: which run of the compiled graph, or -1. fields: what the event
    tells besides: of "run" the run's RunStats, as "stats"; of "split" its ops, as "ops", with the
    seconds that the planner estimates for all nodes of each; of "step", what the host runs between
    two graphs of a model, its "op" and "node".
    """

    name: str
    device: str
    start_s: float
    end_s: float
    run: int = -1
    fields: Mapping[str, object] = field(default_factory=dict)


Sink = Callable[[Event], None]


class Trace:
    """Hands events to sinks; the sink that raises is dropped with a warning."""

    def __init__(self, clock: Clock | None = None, sinks: Iterable[Sink] = ()) -> None:
        self.clock: Clock = clock or SystemClock()
        self._sinks: list[Sink] = list(sinks)
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        return bool(self._sinks)

    def add(self, sink: Sink) -> Sink:
        """Adds a sink and returns it."""
        with self._lock:
            self._sinks = [*self._sinks, sink]
        return sink

    def remove(self, sink: Sink) -> None:
        """Takes a sink away; one that is not there is ignored."""
        with self._lock:
            self._sinks = [s for s in self._sinks if s is not sink]

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            try:
                sink(event)
            except Exception as error:
                self.remove(sink)
                warn(f"[trace] a sink failed and was removed: {error!r}")


def as_trace(given: Trace | Sink | Sequence[Sink] | None) -> Trace:
    """Returns a trace, of a trace, of one sink or of several."""
    if given is None or isinstance(given, Trace):
        return given or Trace()
    sinks = [given] if callable(given) else given
    if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
        raise PlanError(
            f"[Scheduler] expected a vs.Trace, a sink or a list of sinks, got {given!r}; try "
            "trace=vs.Recorder()"
        )
    return Trace(sinks=sinks)


class Recorder:
    """A sink that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def select(self, name: str, device: str | None = None) -> list[Event]:
        """Returns the events of a name, of one device when given, in order of arrival."""
        return [e for e in self.events if e.name == name and (device is None or e.device == device)]

    def save(self, path: str) -> None:
        """Writes the events in the Chrome trace format (chrome://tracing, Perfetto)."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": [_chrome_event(e) for e in self.events]}, file)
        except OSError as error:
            raise VkschedError(f"[trace] cannot write {path}: {error}") from error


def _plain(value: object) -> object:
    """Returns named tuples as dicts."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        plain = [_plain(each) for each in value]
        return plain if names is None else dict(zip(names, plain, strict=True))
    return value


def _chrome_event(event: Event) -> dict[str, object]:
    fields = {
        k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else _plain(v)
        for k, v in event.fields.items()
    }
    ops = event.fields.get("ops", event.fields.get("op", ""))
    return {
        "name": ", ".join(ops) if isinstance(ops, dict) else ops or event.name,
        "ph": "X",
        "ts": event.start_s * 1e6,
        "dur": (event.end_s - event.start_s) * 1e6,
        "pid": "vksched",
        "tid": event.device,
        "args": {**fields, "run": event.run},
    }
