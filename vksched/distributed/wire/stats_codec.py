"""Stats codec: serialize and validate statistics and device descriptions of hosts.

    RunStats, events --encode_run_stats--> bytes --decode_run_stats--> RunStats, events

Examples: tests/distributed/test_stats_codec.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from ...common.errors import DeviceError, PlanError
from ...common.schema import Number, SchemaError, Whole, check
from ...common.serialize import number_of, plain
from ...plan.multi_host.host_plan import HostPlan
from ...plan.types.plan_types import HOST
from ...runtime.run_stats import RunStats, SplitStats
from ...topology.device_spec import (
    GRANULARITIES,
    MIN_PER_S,
    DeviceSpec,
    spec_as_dict,
    spec_from_dict,
)
from ...topology.host_names import on
from ...topology.links import Link
from ...trace import Event
from ...trace.format import FIELDS, OF_SPLITS, LinkDocument
from .json_payload import document_of

_SPLIT = tuple[Whole, str, Whole, Number, Number | None, Number, Number]
_SPAN = tuple[str, Whole, Number, Number]
ToLocalTime = Callable[[float], float]
"""Return the driver's time of a remote time."""
_EVENT = tuple[str, str, Number, Number, dict[str, Any]]
_STATS = tuple[
    Whole, Number, Whole, Whole, Whole, Whole, Whole, tuple[_SPLIT, ...], Number, tuple[_SPAN, ...]
]
_RAN = tuple[_STATS, list[_EVENT]]
AT = ("split", "needed_by")
"""Fields of events that name splits."""


class _DeviceDocument(TypedDict):
    spec: dict[str, Any]
    link: LinkDocument | None


@dataclass(frozen=True, slots=True)
class RemoteDeviceInfo:
    """Description of a host's device under its local name. link: link to the memory of that
    host.
    """

    spec: DeviceSpec
    link: Link | None


def encode_run_stats(stats: RunStats, events: Iterable[Event] = ()) -> bytes:
    """Serialize the statistics and events of a run."""
    recorded = (event for event in events if event.name in OF_SPLITS)
    rows = [[e.name, e.device, e.start_s, e.end_s, plain(e.fields)] for e in recorded]
    return json.dumps([stats, rows], separators=(",", ":"), allow_nan=False).encode()


def decode_run_stats(text: bytes) -> tuple[RunStats, tuple[Event, ...]]:
    """Deserialize statistics and events; the events have no run and plan yet.

    Raises
    ------
    SchemaError
        The bytes are invalid.
    """
    data, rows = document_of(text, _RAN, "run statistics")
    stats = RunStats(*data)
    splits = tuple(SplitStats(*each) for each in stats.splits)
    return stats._replace(splits=splits), tuple(_event(*row) for row in rows)


def _event(
    name: str, device: str, start_s: float, end_s: float, fields: Mapping[str, object]
) -> Event:
    if name not in OF_SPLITS:
        raise SchemaError(f"expected an event of a run, got {name!r}")
    check(fields, FIELDS[name], f"an event {name}")
    return Event(name, device, start_s, end_s, -1, fields)


def require_of(part: HostPlan, stats: RunStats, events: Iterable[Event]) -> None:
    """Raise SchemaError if statistics or events name splits or nodes that a part does not have."""
    splits: set[Any] = {each.split for each in stats.splits} | {at for _, at, _, _ in stats.spans}
    nodes: set[Any] = set()
    for fields in (event.fields for event in events):
        splits |= {fields["split"]} if "split" in fields else set()
        splits |= {fields.get("needed_by", HOST)} - {HOST}
        nodes |= {fields["node"]} if "node" in fields else set()
    if not splits <= set(range(len(part.numbers))) or not nodes <= set(
        range(len(part.plan.graph.nodes))
    ):
        raise SchemaError(f"expected times of splits of the plan, got those of {sorted(splits)}")


def remap_ids(event: Event, numbers: Sequence[int], host: str) -> Event:
    """Return an event of a part with the names and ids of the whole plan. numbers: ids of the
    part's splits in the plan.
    """
    fields = dict(event.fields)
    for key in AT:
        at = fields.get(key, HOST)
        if isinstance(at, int) and at != HOST:
            fields[key] = numbers[at]
    return replace(event, device=on(host, event.device), fields=fields)


def events_to_local_clock(events: Iterable[Event], to_local_s: ToLocalTime) -> tuple[Event, ...]:
    """Return events of a host in the driver's clock."""
    return tuple(_to_local_clock(event, to_local_s) for event in events)


def _to_local_clock(event: Event, to_local_s: ToLocalTime) -> Event:
    fields: dict[str, Any] = dict(event.fields)
    if event.name == "split":
        fields["observed_s"] = to_local_s(fields["observed_s"])
    start_s, end_s = to_local_s(event.start_s), to_local_s(event.end_s)
    return replace(event, start_s=start_s, end_s=end_s, fields=fields)


def stats_to_local_clock(stats: RunStats, host: str, to_local_s: ToLocalTime) -> RunStats:
    """Return a host's statistics with the driver's names and clock."""
    splits = tuple(
        each._replace(
            device=on(host, each.device),
            begin_s=to_local_s(each.begin_s),
            end_s=to_local_s(each.end_s),
        )
        for each in stats.splits
    )
    spans = tuple((kind, at, to_local_s(a), to_local_s(b)) for kind, at, a, b in stats.spans)
    return stats._replace(splits=splits, spans=spans, start_s=to_local_s(stats.start_s))


def encode_devices(devices: Iterable[RemoteDeviceInfo]) -> bytes:
    """Serialize the descriptions of this host's devices."""
    out = [
        {
            "spec": spec_as_dict(each.spec),
            "link": None if each.link is None else plain(asdict(each.link)),
        }
        for each in devices
    ]
    return json.dumps(out).encode()


def decode_devices(text: bytes, host: str) -> tuple[RemoteDeviceInfo, ...]:
    """Deserialize the descriptions of a host's devices. Raise DeviceError if the bytes are
    invalid.
    """
    try:
        data = document_of(text, list[_DeviceDocument], "devices")
        return tuple(_device_info(each) for each in data)
    except (ValueError, TypeError, PlanError) as error:
        raise DeviceError(f"[cluster] expected the devices of {host}, got: {error}") from error


def _device_info(each: _DeviceDocument) -> RemoteDeviceInfo:
    link, spec = each["link"], spec_from_dict(each["spec"], "a device")
    link_spec = None if link is None else link_of(**{key: number_of(v) for key, v in link.items()})
    if "/" in spec.name or not spec.name.isprintable():
        raise PlanError(f"expected the name of a device, got {spec.name[:64]!r}")
    if spec.submit_granularity not in GRANULARITIES:
        raise PlanError(
            f"expected a submit_granularity of {', '.join(GRANULARITIES)}, got "
            f"{spec.submit_granularity[:64]!r}"
        )
    return RemoteDeviceInfo(spec, link_spec)


def link_of(bytes_per_s: float | None, latency_s: float | None) -> Link:
    """Return the link that a host reports. Raise SchemaError if its bandwidth or latency is
    invalid.
    """
    if not (bytes_per_s or 0.0) >= MIN_PER_S or not 0.0 <= (latency_s or 0.0) < math.inf:
        raise SchemaError(
            f"expected the speed of a link, got {bytes_per_s} bytes/s and {latency_s} s"
        )
    return Link(bytes_per_s or 0.0, latency_s or 0.0)


def with_host_name(spec: DeviceSpec, host: str) -> DeviceSpec:
    """Return a device spec under its name in plans of several hosts."""
    return replace(spec, name=on(host, spec.name))
