"""Write: the single file of a tape. Perfetto reads its "traceEvents", and vksched the rest.

    {"traceEvents": [...],
     "vksched": {"format": 2, "version": "0.1", "dropped": 0, "dropped_plans": 0,
                 "graphs": [...], "plans": [...], "columns": [...], "events": [...]}}

`format.py` has the schema of each part.
Complexity: O(events + nodes).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ..common.errors import VkschedError
from ..common.version import __version__
from .event_fields import fields_of
from .events import Event
from .format import COLUMNS, FORMAT
from .perfetto import perfetto_events

Document = Mapping[str, object]
"""Plain data."""


def pack(document: Document) -> bytes:
    """Return a document as compressed JSON."""
    return zlib.compress(json.dumps(document, allow_nan=False).encode(), 1)


def unpack(packed: bytes) -> dict[str, object]:
    """Return the document of a packed one."""
    found: dict[str, object] = json.loads(zlib.decompress(packed))
    return found


def save_tape(
    path: str | PathLike[str],
    events: Sequence[Event],
    graphs: Mapping[int, bytes],
    plans: Sequence[tuple[int, tuple[int, bytes]]],
    dropped: int,
    dropped_plans: int,
) -> None:
    """Write a tape in the form of `document`.

    Raises
    ------
    VkschedError
        The file cannot be written.
    """
    about = document(events, graphs, plans, dropped, dropped_plans)
    named = [
        replace(event, plan=row[5]) for event, row in zip(events, about["events"], strict=True)
    ]
    shown = perfetto_events(named, about["graphs"], about["plans"])
    text = json.dumps({"traceEvents": shown, "vksched": about}, allow_nan=False)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise VkschedError(f"[trace] cannot write {path}: {error.strerror or error}") from error


def document(
    events: Sequence[Event],
    graphs: Mapping[int, bytes],
    plans: Sequence[tuple[int, tuple[int, bytes]]],
    dropped: int,
    dropped_plans: int,
) -> dict[str, Any]:
    """Return the object under "vksched" of a file.

    graphs: packed documents by number. plans: their numbers, each with the number of its graph and
    its packed document. In the file both are numbered from 0.
    """
    graph_at = {number: at for at, number in enumerate(graphs)}
    plan_at = {number: at for at, (number, _) in enumerate(plans)}
    return {
        "format": FORMAT,
        "version": __version__,
        "dropped": dropped,
        "dropped_plans": dropped_plans,
        "graphs": [unpack(text) for text in graphs.values()],
        "plans": [{**unpack(text), "graph": graph_at[graph]} for _, (graph, text) in plans],
        "columns": COLUMNS,
        "events": [
            [e.name, e.device, e.start_s, e.end_s, e.run, plan_at.get(e.plan, -1), fields_of(e)]
            for e in events
        ],
    }
