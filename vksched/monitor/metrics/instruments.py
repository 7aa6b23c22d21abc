"""Instruments: the metrics and their updates by events; exporters are separate.

    Event --MetricsSink--> Instruments.add("runs", 1), .record("run_seconds", 0.003), .set("memory",
    ...)

Problem: a label with many values creates too many time series. Method: a label has at most VALUES
values; further ones become "other". Examples: tests/monitor/test_service_metrics.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...runtime.run_stats import RunStats
from ...trace import Event

VALUES = 64
OTHER = "other"
SECONDS = (1e-4, 2.5e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
"""Bucket boundaries of run times."""

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. kind: "counter", "histogram" or "gauge". labels: names of its labels. unit: UCUM
    unit; "{run}" counts runs.
    """

    kind: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()


MEASURES: Mapping[str, Instrument] = {
    "runs": Instrument("counter", "{run}", "Runs that are done"),
    "run_seconds": Instrument("histogram", "s", "How long runs take"),
    "failed_runs": Instrument("counter", "{run}", "Runs that ended without results", ("error",)),
    "busy_seconds": Instrument("counter", "s", "Time at work, as devices tell it", ("device",)),
    "waited_seconds": Instrument("counter", "s", "Time that the host waited", ("device",)),
    "copies": Instrument(
        "counter", "{copy}", "Values between device and host", ("device", "direction")
    ),
    "copied_bytes": Instrument("counter", "By", "Bytes of these", ("device", "direction")),
    "transfer_bytes": Instrument("counter", "By", "Bytes from one device to another"),
    "faults": Instrument("counter", "{fault}", "Failures of devices", ("device", "error")),
    "slow_submissions": Instrument(
        "counter", "{submission}", "Submissions far slower than planned", ("device",)
    ),
    "plans": Instrument("counter", "{plan}", "Plans that were made"),
    "fallbacks": Instrument("counter", "{fallback}", "Kinds of ops that no device runs, by plan"),
    "memory_bytes": Instrument("gauge", "By", "What plans made ready take", ("device",)),
}


class Instruments(Protocol):
    """The metrics in a library. labels: values, in the order of the measure's labels."""

    def add(self, name: str, amount: float, labels: Labels = ()) -> None: ...

    def record(self, name: str, value: float) -> None: ...

    def set(self, name: str, value: float, labels: Labels = ()) -> None: ...


class MetricsSink:
    """A trace sink that updates metrics. Thread-safe; schedulers may share it."""

    def __init__(self, instruments: Instruments) -> None:
        self._to = instruments
        self._known: dict[str, set[str]] = {}
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()
        self._takes: Mapping[str, Callable[[Event], None]] = {
            "run": self._run,
            "failed": self._failed,
            "wait": self._wait,
            "copy": self._copy,
            "fault": self._fault,
            "slowdown": lambda event: self._to.add("slow_submissions", 1, self._device(event)),
            "plan": lambda event: self._to.add("plans", 1),
            "fallback": lambda event: self._to.add("fallbacks", 1),
            "prepare": self._memory,
            "release": self._memory,
        }

    def __call__(self, event: Event) -> None:
        take = self._takes.get(event.name)
        if take is not None:
            take(event)

    def _run(self, event: Event) -> None:
        stats = event.fields["stats"]
        assert isinstance(stats, RunStats)
        self._to.add("runs", 1)
        self._to.record("run_seconds", stats.seconds)
        self._to.add("transfer_bytes", stats.transfer_bytes)
        for device, seconds in stats.device_seconds.items():
            self._to.add("busy_seconds", seconds, (self._value("device", device),))

    def _failed(self, event: Event) -> None:
        self._to.add("failed_runs", 1, (self._value("error", event.fields["error"]),))

    def _wait(self, event: Event) -> None:
        self._to.add("waited_seconds", event.end_s - event.start_s, self._device(event))

    def _copy(self, event: Event) -> None:
        labels = (*self._device(event), self._value("direction", event.fields["way"]))
        self._to.add("copies", 1, labels)
        self._to.add("copied_bytes", _whole(event, "bytes"), labels)

    def _fault(self, event: Event) -> None:
        error = self._value("error", event.fields["error"])
        self._to.add("faults", 1, (*self._device(event), error))

    def _memory(self, event: Event) -> None:
        """Update memory metrics; existing weights and states are not counted again."""
        names = "bytes", "weight_bytes", "state_bytes"
        size = sum(_whole(event, name) for name in names) - _whole(event, "resident_bytes")
        (device,) = self._device(event)
        with self._lock:
            held = self._held.get(device, 0) + (size if event.name == "prepare" else -size)
            self._held[device] = max(0, held)
            self._to.set("memory_bytes", self._held[device], (device,))

    def _device(self, event: Event) -> Labels:
        return (self._value("device", event.device),)

    def _value(self, label: str, value: object) -> str:
        """Return the value of a label, or OTHER if there are too many."""
        known, word = self._known.setdefault(label, set()), str(value)
        if word not in known:
            if len(known) >= VALUES:
                return OTHER
            known.add(word)
        return word


def _whole(event: Event, name: str) -> int:
    value = event.fields[name]
    assert isinstance(value, int)
    return value
