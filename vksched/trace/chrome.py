"""Chrome: events as chrome://tracing and Perfetto read them."""

from __future__ import annotations

from collections.abc import Sequence

from .events import Event
from .plain import plain


def chrome_events(events: Sequence[Event]) -> list[object]:
    """Returns what stands under "traceEvents"."""
    return [_chrome_event(event) for event in events]


def _chrome_event(event: Event) -> dict[str, object]:
    ops = event.fields.get("ops", event.fields.get("op", ""))
    return {
        "name": ", ".join(ops) if isinstance(ops, dict) else ops or event.name,
        "ph": "X",
        "ts": event.start_s * 1e6,
        "dur": (event.end_s - event.start_s) * 1e6,
        "pid": "vksched",
        "tid": event.device,
        "args": {**{k: plain(v) for k, v in event.fields.items()}, "run": event.run},
    }
