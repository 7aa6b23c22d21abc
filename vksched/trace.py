"""Trace: what happened when, as events for any number of sinks, which cannot break a run."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from types import FrameType
from typing import Protocol

from .errors import VkschedError


class VkschedWarning(UserWarning):
    """Something works, but not as well as the user may expect; the text says why and what to do."""


def warn(text: str) -> None:
    """Warns where raising would do harm: in worker threads, and midway through freeing."""
    with contextlib.suppress(VkschedWarning):  # raised where warnings are errors
        warnings.warn(text, VkschedWarning, stacklevel=3)


def warn_user(text: str) -> None:
    """Warns at the first line outside the package, however deep below it the call is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, VkschedWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __name__.partition(".")[0]


class Clock(Protocol):
    """Seconds from an arbitrary start; simulated in tests."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time. name: "split", "wait", "copy", "run", "step", "fault", "slow" or
    "tune".

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


def _chrome_event(event: Event) -> dict[str, object]:
    fields = {
        k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v
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
