"""Snapshot: the state of a process's schedulers at one time, and its JSON line.

    ProcessNow -> SchedulerNow, ... -> DeviceNow, ...    encode: one line    decode: or one error

A decoded line comes from another process: each field has a type and a bound, and control characters
of texts are escaped. Examples: tests/viz/test_top_snapshot.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Annotated

from msgspec import Meta

from ...common.errors import VkschedError
from ...common.formatting import printable
from ...common.schema import SchemaError, parse

FORMAT = 1
LINE_BYTES = 1 << 18
"""Maximum length of a line."""
SCHEDULERS = 32
DEVICES = 32
"""Maximum number of devices of a process and of a scheduler."""
TEXT = 200
HISTORY = 600
NUMBER = 10**18
MOMENT_S = 2e11
"""Upper bound of timestamps: the year 9999 and later."""
Count = Annotated[int, Meta(ge=0, le=NUMBER)]
Amount = Annotated[float, Meta(ge=-NUMBER, le=NUMBER)]
Moment = Annotated[float, Meta(ge=0, le=MOMENT_S)]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Texts are bounded lines without control characters."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                object.__setattr__(self, each.name, text(value))


@dataclass(frozen=True, slots=True)
class DeviceNow(_Snapshot):
    """One device of a scheduler.

    problem: why it is disabled, or "". busy: utilization in the last two seconds. history: percent
    busy in each tick of the last minute, the oldest first. now: current work, or "". queue:
    submitted splits that have not ended, as far as the host knows. memory_used_bytes: used part of
    memory_total_bytes, by all programs; memory_own_bytes: by this process. runs, copies,
    copied_bytes, faults: totals since the scheduler was opened; with _per_s: rates of the last two
    seconds.
    """

    name: str
    label: str
    kind: str
    problem: str
    busy: Amount
    history: Annotated[tuple[Count, ...], Meta(max_length=HISTORY)]
    now: str
    queue: Count
    memory_used_bytes: Count | None
    memory_total_bytes: Count | None
    memory_own_bytes: Count | None
    temperature_c: Amount | None
    runs: Count
    runs_per_s: Amount
    copies: Count
    copies_per_s: Amount
    copied_bytes: Count
    copied_bytes_per_s: Amount
    busy_s: Amount
    faults: Count

    def __post_init__(self) -> None:
        _Snapshot.__post_init__(self)
        object.__setattr__(self, "busy", min(1.0, max(0.0, self.busy)))
        object.__setattr__(self, "history", tuple(min(100, each) for each in self.history))


@dataclass(frozen=True, slots=True)
class SchedulerNow(_Snapshot):
    """One scheduler. running: runs in progress. waiting: queued runs. simulated: True if its
    seconds are simulated.
    """

    number: Count
    policy: str
    simulated: bool
    graphs: Count
    running: Count
    waiting: Count
    runs: Count
    runs_per_s: Amount
    run_s: Amount
    devices: Annotated[tuple[DeviceNow, ...], Meta(max_length=DEVICES)]


@dataclass(frozen=True, slots=True)
class ProcessNow(_Snapshot):
    """One process. time_s, started_s: seconds since 1970. tick_s: tick length of the history."""

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)]
    version: str
    pid: Count
    program: str
    started_s: Moment
    time_s: Moment
    tick_s: Amount
    schedulers: Annotated[tuple[SchedulerNow, ...], Meta(max_length=SCHEDULERS)]

    @property
    def runs_per_s(self) -> float:
        return sum(each.runs_per_s for each in self.schedulers)

    @property
    def devices(self) -> tuple[tuple[SchedulerNow, DeviceNow], ...]:
        """Return all devices, each with its scheduler."""
        return tuple((sched, device) for sched in self.schedulers for device in sched.devices)


def encode(process: ProcessNow) -> bytes:
    """Return a snapshot as a line of at most LINE_BYTES; excess schedulers are omitted."""
    line = _line(process)
    while len(line) > LINE_BYTES and process.schedulers:
        process = _with_schedulers(process, process.schedulers[:-1])
        line = _line(process)
    return line


def _line(process: ProcessNow) -> bytes:
    return json.dumps(asdict(process), separators=(",", ":")).encode() + b"\n"


def _with_schedulers(process: ProcessNow, schedulers: tuple[SchedulerNow, ...]) -> ProcessNow:
    values = {each.name: getattr(process, each.name) for each in fields(process)}
    return ProcessNow(**{**values, "schedulers": schedulers})


def decode(line: bytes) -> ProcessNow:
    """Return the snapshot of a line. Raise VkschedError if it is invalid."""
    try:
        process: ProcessNow = parse(line, ProcessNow, "the line")
        return process
    except SchemaError as error:
        raise VkschedError(
            f"[top] expected a line of a running vksched, got {line[:40]!r}...: {error}; try the "
            "same version of vksched on both sides"
        ) from error


def text(value: str) -> str:
    """Return a text as one line with escaped control characters, truncated to TEXT characters."""
    return printable(value[:TEXT], one_line=True)[:TEXT]
