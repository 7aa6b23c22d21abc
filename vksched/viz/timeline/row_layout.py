"""Row layout: a row for each lane and kind of span, in tracks if spans overlap.

Spans of a track do not overlap and are in the order of time, so that pictures find visible spans by
bisection.
Complexity: spans, sorted. Examples: tests/viz/test_view_make.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ...trace.lane_packing import pack_lanes
from .timeline_types import HOST, ROWS, Lane, Span

WORDS = {
    "run": "runs",
    "host": "work",
    "mark": "events",
    "work": "measured",
    "transfer_queue": "copies",
    "predicted": "predicted",
    "transfer_queue predicted": "copies, predicted",
    "ops": "ops, predicted",
}


@dataclass(frozen=True, slots=True)
class Track:
    """A line of spans. row: one of ROWS. number: its number in the row. spans: by time."""

    lane: int
    row: str
    number: int
    spans: tuple[int, ...]

    @property
    def label(self) -> str:
        if not self.spans:
            return "no work"
        return WORDS[self.row] if not self.number else ""


def lay_out(lanes: Sequence[Lane], spans: Sequence[Span]) -> list[Track]:
    """Return all tracks from top to bottom; a lane without spans has one empty track."""
    by_row: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        by_row[span.lane, span.row].append(number)
    tracks: list[Track] = []
    for lane in range(len(lanes)):
        here = [row for row in ROWS if (lane, row) in by_row]
        for row in here or (["host"] if lane == HOST else ["work"]):
            numbers = by_row.get((lane, row), [])
            lines = pack_lanes([(spans[n].start_s, spans[n].end_s) for n in numbers])
            for count, line in enumerate(lines):
                tracks.append(Track(lane, row, count, tuple(numbers[at] for at in line)))
    return tracks
