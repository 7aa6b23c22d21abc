"""Snapshot: the state of a process's schedulers at one time, and its JSON line.

    ProcessNow -> SchedulerNow, ... -> DeviceNow, ...    encode: one line    decode: or one error

A decoded line comes from another process: each field has a type and a bound, and control characters
of texts are escaped. Examples: tests/viz/test_top_snapshot.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ...common.errors import VkschedError
from ...common.formatting import printable

FORMAT = 1
LINE_BYTES = 1 << 18
"""Maximum length of a line."""
SCHEDULERS = 32
DEVICES = 32
"""Maximum number of devices of a process and of a scheduler."""
TEXT = 200
HISTORY = 600
NUMBER = 1e18
MOMENT_S = 2e11
"""Upper bound of timestamps: the year 9999 and later."""


@dataclass(frozen=True, slots=True)
class DeviceNow:
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
    busy: float
    history: tuple[int, ...]
    now: str
    queue: int
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    memory_own_bytes: int | None
    temperature_c: float | None
    runs: int
    runs_per_s: float
    copies: int
    copies_per_s: float
    copied_bytes: int
    copied_bytes_per_s: float
    busy_s: float
    faults: int


@dataclass(frozen=True, slots=True)
class SchedulerNow:
    """One scheduler. running: runs in progress. waiting: queued runs. simulated: True if its
    seconds are simulated.
    """

    number: int
    policy: str
    simulated: bool
    graphs: int
    running: int
    waiting: int
    runs: int
    runs_per_s: float
    run_s: float
    devices: tuple[DeviceNow, ...]


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """One process. time_s, started_s: seconds since 1970. tick_s: tick length of the history."""

    format: int
    version: str
    pid: int
    program: str
    started_s: float
    time_s: float
    tick_s: float
    schedulers: tuple[SchedulerNow, ...]

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


# -- decoding --------------------------------------------------------------------------------------

Taken = TypeVar("Taken")


def decode(line: bytes) -> ProcessNow:
    """Return the snapshot of a line. Raise VkschedError if it is invalid."""
    try:
        process: ProcessNow = _process(json.loads(line))
        return process
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise VkschedError(
            f"[top] expected a line of a running vksched, got {line[:40]!r}...: {error}; try the "
            "same version of vksched on both sides"
        ) from error


def text(value: object) -> str:
    """Return a text as one line with escaped control characters, truncated to TEXT characters."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return printable(value[:TEXT], one_line=True)[:TEXT]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    if not -NUMBER <= value <= NUMBER:  # also excludes NaN
        raise ValueError(f"expected a number of at most {NUMBER}")
    return value


def _format(value: object) -> int:
    if value != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {value!r:.20}")
    return FORMAT


def _count(value: object) -> int:
    number = _number(value)
    if not isinstance(value, int) or number < 0:
        raise ValueError("expected a whole number of 0 and more")
    return int(number)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, got {type(value).__name__}")
    return value


def _maybe(take: Callable[[object], Taken]) -> Callable[[object], Taken | None]:
    return lambda value: None if value is None else take(value)


def _several(take: Callable[[Any], Taken], most: int) -> Callable[[object], tuple[Taken, ...]]:
    def taken(value: object) -> tuple[Taken, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise TypeError(f"expected a list of at most {most}")
        return tuple(map(take, value))

    return taken


def _object(kind: type[Taken], takes: Mapping[str, Callable[[object], Any]]) -> Any:
    def taken(value: object) -> Taken:
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, got {type(value).__name__}")
        return kind(**{name: take(value[name]) for name, take in takes.items()})

    return taken


def _moment(value: object) -> float:
    number = _number(value)
    if not 0 <= number <= MOMENT_S:
        raise ValueError("expected seconds since 1970")
    return number


def _share(value: object) -> float:
    return min(1.0, max(0.0, _number(value)))


_BY_TYPE: Mapping[str, Callable[[object], Any]] = {
    "str": text,
    "bool": _truth,
    "int": _count,
    "float": _number,
    "int | None": _maybe(_count),
    "float | None": _maybe(_number),
}


def _validators(
    kind: type[Any], **special: Callable[[object], Any]
) -> dict[str, Callable[[object], Any]]:
    """Return the validator of each field, by its type or from `special`."""
    return {
        each.name: special[each.name] if each.name in special else _BY_TYPE[str(each.type)]
        for each in fields(kind)
    }


def _percent(value: object) -> int:
    return min(100, _count(value))


_device = _object(
    DeviceNow, _validators(DeviceNow, busy=_share, history=_several(_percent, HISTORY))
)
_scheduler = _object(SchedulerNow, _validators(SchedulerNow, devices=_several(_device, DEVICES)))
_process = _object(
    ProcessNow,
    _validators(
        ProcessNow,
        format=_format,
        started_s=_moment,
        time_s=_moment,
        schedulers=_several(_scheduler, SCHEDULERS),
    ),
)
