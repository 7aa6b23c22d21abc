"""Rows: where each span is drawn: a row a lane and kind, in tracks where spans overlap.

Spans of a track do not overlap and are in the order of time, so that pictures find what is visible
by halving. Complexity: spans, sorted. Examples: tests/view/test_view_rows.py.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .value import HOST, ROWS, Lane, Span

WORDS = {
    "run": "runs",
    "host": "work",
    "mark": "events",
    "work": "measured",
    "predicted": "predicted",
    "ops": "ops, predicted",
}

LEAST_S = 1e-12
"""Sums of predicted times are off by less."""


@dataclass(frozen=True, slots=True)
class Track:
    """A line of spans. row: one of ROWS; number: which of the row's lines. spans: by time."""

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
    """Returns all tracks from top to bottom; a lane without spans has one empty track."""
    by_row: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        by_row[span.lane, span.row].append(number)
    tracks: list[Track] = []
    for lane in range(len(lanes)):
        here = [row for row in ROWS if (lane, row) in by_row]
        for row in here or (["host"] if lane == HOST else ["work"]):
            lines = _tracks(spans, by_row.get((lane, row), []))
            tracks += [Track(lane, row, n, tuple(line)) for n, line in enumerate(lines)]
    return tracks


def _tracks(spans: Sequence[Span], numbers: list[int]) -> list[list[int]]:
    """Returns as few lines as there are, at any moment, spans side by side."""
    numbers.sort(key=lambda n: (spans[n].start_s, spans[n].end_s))
    lines: list[list[int]] = [[]]
    busy: list[tuple[float, int]] = []
    free = [0]
    for number in numbers:
        while busy and busy[0][0] <= spans[number].start_s + LEAST_S:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(lines))
            lines.append([])
        line = heapq.heappop(free)
        lines[line].append(number)
        heapq.heappush(busy, (spans[number].end_s, line))
    return lines
