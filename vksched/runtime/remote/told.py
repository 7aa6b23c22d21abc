"""Told: what hosts tell of runs and of themselves, as plain data, checked by those who read it.

    RunStats --stats_document--> bytes --stats_of--> RunStats          devices: specs and links

Examples: tests/runtime/remote/test_told.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import DeviceError, PlanError
from ...machine.hosts import on
from ...machine.links import Link
from ...machine.spec import DeviceSpec, spec_as_dict, spec_from_dict
from ...trace.plain import number_of, plain
from ...trace.schema import NUMBER, Either, Row, Wrong, check
from ..stats import RunStats, SplitStats

_MAYBE = Either((None, float))
_SPLIT = Row((int, str, int, float, _MAYBE, float, float))
_SPAN = Row((str, int, float, float))
_STATS = Row((int, float, int, int, int, int, int, [_SPLIT], float, [_SPAN]))
_LINK = {"bytes_per_s": NUMBER, "latency_s": NUMBER}
_DEVICES = [{"spec": dict, "link": Either((None, _LINK))}]


@dataclass(frozen=True, slots=True)
class Told:
    """A device of a host, under its own name there. link: its way to the memory of that host."""

    spec: DeviceSpec
    link: Link | None


def stats_document(stats: RunStats) -> bytes:
    """Returns what a run cost as bytes."""
    return json.dumps(stats, separators=(",", ":"), allow_nan=False).encode()


def stats_of(text: bytes) -> RunStats:
    """Returns what a run cost.

    Raises:
        Wrong: the bytes are none of `stats_document`.
    """
    data: list[Any] = _parsed(text, _STATS, "stats")
    made = RunStats(*data)
    splits = tuple(SplitStats(*each) for each in made.splits)
    return made._replace(splits=splits, spans=tuple((k, s, a, b) for k, s, a, b in made.spans))


def seen_from(stats: RunStats, host: str, ahead_s: float) -> RunStats:
    """Returns what a host told, by the caller's names and clock. ahead_s: of the host's clock."""
    splits = tuple(
        each._replace(
            device=on(host, each.device),
            begin_s=each.begin_s - ahead_s,
            end_s=each.end_s - ahead_s,
        )
        for each in stats.splits
    )
    spans = tuple((kind, at, a - ahead_s, b - ahead_s) for kind, at, a, b in stats.spans)
    return stats._replace(splits=splits, spans=spans, start_s=stats.start_s - ahead_s)


def devices_document(devices: Iterable[Told]) -> bytes:
    """Returns what a host tells of its devices."""
    out = [
        {
            "spec": spec_as_dict(each.spec),
            "link": None if each.link is None else plain(asdict(each.link)),
        }
        for each in devices
    ]
    return json.dumps(out).encode()


def devices_of(text: bytes, host: str) -> tuple[Told, ...]:
    """Returns the devices of a host.

    Raises:
        DeviceError: the bytes are none of `devices_document`.
    """
    try:
        data = _parsed(text, _DEVICES, "devices")
        return tuple(_told(each) for each in data)
    except (ValueError, TypeError, PlanError) as error:
        raise DeviceError(f"[cluster] expected the devices of {host}, got: {error}") from error


def _told(each: dict[str, Any]) -> Told:
    link = each["link"]
    made = None if link is None else Link(**{key: number_of(v) for key, v in link.items()})
    return Told(spec_from_dict(each["spec"], "a device"), made)


def named(spec: DeviceSpec, host: str) -> DeviceSpec:
    """Returns a device's description under the name that it has in plans of several hosts."""
    return replace(spec, name=on(host, spec.name))


def _parsed(text: bytes, schema: object, what: str) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"expected {what}, got no JSON: {error}") from None
    check(data, schema, what)
    return data
