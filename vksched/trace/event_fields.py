"""Event fields: values of events and documents as JSON data, and back.

JSON has no infinity and no NaN: these are {"float": "inf"}.
"""

from __future__ import annotations

from ..common.serialize import plain
from .events import Event

OMITTED = {"split": ("ops",), "run": ("stats",), "plan": ("about",)}
"""Fields that plans and other events of a file already contain."""


def fields_of(event: Event) -> dict[str, object]:
    """Return the fields of an event in the form of a file."""
    skipped = OMITTED.get(event.name, ()) if event.plan >= 0 else ()
    out = {key: plain(value) for key, value in event.fields.items() if key not in skipped}
    if "stats" in skipped:
        stats = plain(event.fields.get("stats"))
        stats = stats if isinstance(stats, dict) else {}
        out["stats"] = {k: v for k, v in stats.items() if k not in ("splits", "spans")}
    return out
