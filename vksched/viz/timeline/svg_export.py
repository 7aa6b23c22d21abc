"""SVG export: a timeline as a still picture: measured rows, predicted rows below them, copies as
lines.

Examples: tests/viz/test_view_files.py.
"""

from __future__ import annotations

from dataclasses import replace

from ..gantt import Bar, Row, Transfer, draw_timeline
from .row_layout import WORDS, Track, lay_out
from .timeline_types import HOST, PREDICTED_ROWS, TimelineValue, tip_of

KEY = "band and diamond: critical path; dashed: predicted"


def as_svg(timeline: TimelineValue) -> str:
    """Return the picture of the initial view as SVG text. Equal timelines give equal text."""
    timeline = shown_part(timeline)
    tracks = [track for track in lay_out(timeline.lanes, timeline.spans) if track.spans]
    place = {number: at for at, track in enumerate(tracks) for number in track.spans}
    transfers = [
        Transfer(
            place[link.source],
            place[link.target],
            timeline.spans[link.source].end_s,
            timeline.spans[link.target].start_s,
            f"{link.name}: {link.bytes} bytes",
        )
        for link in timeline.links
        if link.kind == "copy" and HOST not in _lanes(timeline, link.source, link.target)
    ]
    subtitle = f"{timeline.summary}; {KEY}" if timeline.critical else timeline.summary
    rows = [row_of(timeline, track) for track in tracks]
    return draw_timeline(timeline.title, subtitle, rows, transfers, noun="span")


def shown_part(timeline: TimelineValue) -> TimelineValue:
    """Return the initial view as a timeline that begins at 0."""
    from_s, to_s = timeline.shown
    if to_s <= from_s:
        return timeline
    shown_ids = [n for n, s in enumerate(timeline.spans) if s.end_s >= from_s and s.start_s <= to_s]
    at = {number: place for place, number in enumerate(shown_ids)}
    spans = [timeline.spans[n] for n in shown_ids]
    return replace(
        timeline,
        spans=[
            s._replace(start_s=max(s.start_s - from_s, 0.0), end_s=s.end_s - from_s) for s in spans
        ],
        links=[
            link._replace(source=at[link.source], target=at[link.target])
            for link in timeline.links
            if link.source in at and link.target in at
        ],
        critical=frozenset(at[n] for n in timeline.critical if n in at),
    )


def _lanes(timeline: TimelineValue, *numbers: int) -> list[int]:
    return [timeline.spans[number].lane for number in numbers]


def row_of(timeline: TimelineValue, track: Track) -> Row:
    """Return a track as a row of bars."""
    bars = [
        Bar(s.start_s, s.end_s, s.name, None, n in timeline.critical, tip_of(timeline, s))
        for n, s in ((n, timeline.spans[n]) for n in track.spans)
    ]
    lane = timeline.lanes[track.lane].name
    # the host has the last colour, devices the colours of their numbers
    return Row(lane, bars, WORDS[track.row], track.lane - 1, track.row in PREDICTED_ROWS)
