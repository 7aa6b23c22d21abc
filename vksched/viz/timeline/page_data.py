"""Page data: a timeline as compact JSON for the page: columns of numbers, each text once.

    spans --row_layout.lay_out--> in the order of tracks and time --> start: differences, in ticks

A column of equal values is stored as that value.
Complexity: spans + links. Examples: tests/viz/test_view_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .row_layout import lay_out
from .timeline_types import PlanView, Span, TimelineValue

MAX_PICOSECOND_S = 1e-3
"""Timelines shorter than this have ticks of picoseconds, others of nanoseconds."""


class _Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def page_data(timeline: TimelineValue) -> dict[str, Any]:
    """Return the data of the page."""
    tracks = lay_out(timeline.lanes, timeline.spans)
    order = [number for track in tracks for number in track.spans]
    place = {number: at for at, number in enumerate(order)}
    end_s = timeline.end_s
    ticks = 1e12 if end_s < MAX_PICOSECOND_S else 1e9
    texts = _Texts()
    spans = [timeline.spans[number] for number in order]
    return {
        "title": timeline.title,
        "summary": timeline.summary,
        "notes": list(timeline.notes),
        "ticks": ticks,
        "shown": list(timeline.shown),
        "lanes": [[lane.name, lane.label] for lane in timeline.lanes],
        "tracks": [[t.lane, t.row, t.label, len(t.spans)] for t in tracks],
        "spans": {
            **_columns(spans, ticks, texts),
            "critical": _column(int(number in timeline.critical) for number in order),
        },
        "links": {
            "source": _column(place[link.source] for link in timeline.links),
            "target": _column(place[link.target] for link in timeline.links),
            "kind": _column(texts(link.kind) for link in timeline.links),
            "bytes": _column(link.bytes for link in timeline.links),
            "name": _column(texts(link.name) for link in timeline.links),
        },
        "counts": [len(spans), len(timeline.links)],
        "counters": [
            [c.lane, c.name, c.most, [round(t * ticks) for t in c.times_s], list(c.values)]
            for c in timeline.counters
        ],
        "plans": [_plan(view, texts) for view in timeline.plans],
        "texts": list(texts.numbers),
    }


def _columns(spans: Sequence[Span], ticks: float, texts: _Texts) -> dict[str, Any]:
    starts = [round(span.start_s * ticks) for span in spans]
    ends = [round(span.end_s * ticks) for span in spans]
    steps = [at - before for at, before in zip(starts, [0, *starts], strict=False)]
    expected = (-1 if s.expected_s is None else round(s.expected_s * ticks) for s in spans)
    return {
        "step": steps,
        "took": [end - start for start, end in zip(starts, ends, strict=True)],
        "name": _column(texts(span.name) for span in spans),
        "kind": _column(texts(span.kind) for span in spans),
        "run": _column(span.run for span in spans),
        "plan": _column(span.plan for span in spans),
        "split": _column(span.split for span in spans),
        "node": _column(span.node for span in spans),
        "bytes": _column(span.bytes for span in spans),
        "expected": _column(expected),
        "details": _column(texts(span.details) for span in spans),
    }


def _column(values: Iterable[int]) -> int | list[int]:
    """Return values, or their common value if all are equal."""
    column = list(values)
    return column[0] if column and column.count(column[0]) == len(column) else column


def _plan(view: PlanView, texts: _Texts) -> dict[str, Any]:
    return {
        "name": view.name,
        "about": view.about,
        "seconds": view.seconds,
        "nodes": [
            [
                texts(node.name),
                texts(node.op),
                texts(node.type),
                [texts(read) for read in node.reads],
                node.seconds,
                node.explain,
            ]
            for node in view.nodes
        ],
        "splits": [[s.lane, list(s.nodes), list(s.waits)] for s in view.splits],
    }


def as_script(data: object) -> str:
    """Return data as JSON that is safe inside a script element, whatever its texts hold."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace("&", "\\u0026")
