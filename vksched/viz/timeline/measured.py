"""Measured spans: recorded events as spans.

An event of a run is drawn on the lane of its device if the device performed it, otherwise on the
host's lane with the device in its name. An event without duration is a mark. Missing lanes are
added.

Complexity: events. Examples: tests/viz/test_view_make.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...common.formatting import format_bytes
from ...trace import Event
from ...trace.perfetto import BY_HOST, lane_of
from .predicted import name_of
from .timeline_types import HOST, Between, Lane, PlanView, Span, comes_before

LASTING = frozenset(("split", "transfer_queue", "copy", "wait", "submit", "send", "recv"))
"""Events that are on their rows even without duration."""
SHOWN = 6
"""Maximum number of fields of an event in a tooltip."""
KNOWN = frozenset(("ops", "stats", "split", "node", "bytes", "op", "way", "needed_by", "to", "of"))


def measured_spans(
    events: Iterable[Event], plans: Sequence[PlanView], lanes: list[Lane]
) -> list[Span]:
    """Return a span for each event; add lanes for missing devices."""
    maker = _TimelineBuilder(plans, lanes)
    spans = [maker.span(event) for event in events]
    first_s = min((span.start_s for span in spans), default=0.0)
    return [
        span._replace(start_s=span.start_s - first_s, end_s=span.end_s - first_s) for span in spans
    ]


class _TimelineBuilder:
    """Builds the span of an event."""

    def __init__(self, plans: Sequence[PlanView], lanes: list[Lane]) -> None:
        self._plans = plans
        self._lanes = lanes
        self._number = {lane.name: number for number, lane in enumerate(lanes)} | {"host": HOST}
        self._expected = [_expected(plan) for plan in plans]

    def span(self, event: Event) -> Span:
        plan, split = event.plan, _int(event.fields.get("split"))
        lane, row = self._place(event)
        node, size = _int(event.fields.get("node")), max(_int(event.fields.get("bytes")), 0)
        value = self._plans[plan].nodes[node].name if plan >= 0 and node >= 0 else ""
        if plan >= 0 and split >= 0 and self._plans[plan].decides:
            plan = -1  # its runs have splits of their own
        what = event.fields.get("way", "") if row == "transfer_queue" else row
        expected_s = self._expected[plan].get((split, what)) if plan >= 0 else None
        if event.name == "run" and plan >= 0:
            expected_s = self._plans[plan].seconds
        return Span(
            lane,
            row,
            event.name,
            self._name(event, plan, split, value),
            event.start_s,
            max(event.end_s, event.start_s),
            event.run,
            plan,
            split,
            -1,
            size,
            expected_s,
            _format_details(event, size),
            self._between(event, node),
        )

    def _between(self, event: Event, node: int) -> Between | None:
        if event.name == "send":
            return node, event.device, str(event.fields.get("to"))
        return (node, str(event.fields.get("of")), event.device) if event.name == "recv" else None

    def _place(self, event: Event) -> tuple[int, str]:
        if event.name in ("run", "failed"):
            return HOST, "run"
        if event.end_s <= event.start_s and event.name not in LASTING:
            return self._lane(event.device), "mark"
        if event.name in BY_HOST:
            return self._lane(lane_of(event)), "host"
        return self._lane(
            event.device
        ), "transfer_queue" if event.name == "transfer_queue" else "work"

    def _lane(self, device: str) -> int:
        if device not in self._number:
            self._number[device] = len(self._lanes)
            self._lanes.append(Lane(device))
        return self._number[device]

    def _name(self, event: Event, plan: int, split: int, value: str) -> str:
        if event.name in ("run", "failed"):
            return f"run {event.run}" + (" failed" if event.name == "failed" else "")
        if event.name == "split" and plan >= 0 and split >= 0:
            return name_of(self._plans[plan], "split", split)
        ops = event.fields.get("ops", event.fields.get("op"))
        if event.name == "split" and ops:
            return f"split {split}: {', '.join(map(str, ops)) if isinstance(ops, Mapping) else ops}"
        if event.name == "copy":
            way = "from" if event.fields.get("way") == "out" else "to"
            return f"copy {value} {way} {event.device}" if value else f"copy for split {split}"
        if event.name in ("send", "recv"):
            of, to = (str(event.fields.get(key, "")) for key in ("of", "to"))
            return f"send {value} to {to}" if event.name == "send" else f"take {value} of {of}"
        if event.name == "transfer_queue":
            return f"copies {event.fields.get('way', '')} of split {split}"
        if event.name in ("wait", "submit") and split >= 0:
            return f"{event.name}{' for' if event.name == 'wait' else ''} split {split}"
        if event.name in ("prepare", "release"):
            return f"{event.name} {event.device}"
        return f"{event.name} {ops}" if ops else event.name


def _expected(view: PlanView) -> dict[tuple[int, object], float]:
    """Return the expected seconds of each split: of its work, and of its asynchronous copies, "in"
    and "out".
    """
    splits = {part.split: part for part in view.predicted if part.kind == "split"}
    out: dict[tuple[int, object], float] = {}
    for part in view.predicted:
        what = "work"
        if part.kind == "transfer_queue":
            what = "in" if comes_before(part, splits[part.split]) else "out"
        if part.kind in ("split", "transfer_queue"):
            out[part.split, what] = part.end_s - part.start_s
    return out


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _format_details(event: Event, size: int) -> str:
    view = [format_bytes(size)] if size else []
    if event.name in ("wait", "submit"):
        view.append(f"for {event.device}")
    plain = [
        f"{key} {value}"
        for key, value in event.fields.items()
        if key not in KNOWN and isinstance(value, (str, int)) and str(value)
    ]
    return ", ".join([*view, *plain[:SHOWN]])
