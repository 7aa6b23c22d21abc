"""Report chart: draws a run as a timeline with lanes for each device, and bars of predicted and
measured times.

    vulkan:0 busy  |   ####      ####|         run       predicted ======
    vulkan:0 copy  |##     #         |                   measured  ########
    vulkan:0 wait  |   ####      ####|         vulkan:0  predicted =====

Complexity: O(n log n) for n spans. Examples: tests/engine/test_report.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from ...common.formatting import format_seconds
from ...viz.gantt import LEFT, MARGIN, ROW, TOP, WIDTH, Bar, Row, add_rows
from ...viz.svg import (
    add_rect,
    add_text,
    add_tip,
    as_text,
    colours_of,
    fit,
    new_picture,
)
from .predictions import PredictionRow
from .time_breakdown import TimeBreakdown, TimeSpan

LANES = {"busy": "busy", "copy": "copy", "wait": "host wait"}
"""The lanes of each device from top to bottom. A CPU step counts as busy."""
GREY = "#e9e9e9", "#555555"
PAIR, THICK = 30.0, 11.0
"""The heights of a pair of bars, and of one bar."""
MAX_OPS = 12
"""The maximum number of ops that are drawn, the longest first."""
NAMES = 240.0
"""The width of the column of names."""


def draw_report(
    title: str,
    subtitle: str,
    times: Sequence[TimeBreakdown],
    spans: Sequence[TimeSpan],
    pairs: Sequence[tuple[str, int | None, PredictionRow]],
) -> str:
    """Return the chart as SVG text, deterministically.

    subtitle: a line below the title. times: the times of all devices; devices without spans have no
    lanes. pairs: the pairs of bars: a name, the color index of its device or None, and the row.
    """
    rows = _rows(times, spans)
    middle = TOP + ROW * len(rows) + 60
    height = middle + PAIR * len(pairs) + 2 * MARGIN
    root = new_picture(WIDTH, height, title)
    add_text(root, MARGIN, 22, title, weight="bold", size="12")
    add_text(root, MARGIN, 40, subtitle)
    add_rows(root, rows, max(share.wall_s for share in times) or 1.0, "span")
    add_text(root, MARGIN, middle - 8, "predicted (light) and measured (dark)", weight="bold")
    longest_s = max((max(p.predicted_s, p.measured_s) for _, _, p in pairs), default=0.0) or 1.0
    for at, (name, colour, line) in enumerate(pairs):
        colours = GREY if colour is None else colours_of(colour)
        _draw_pair(root, middle + 6 + PAIR * at, name, colours, line, longest_s)
    return as_text(root)


def _rows(times: Sequence[TimeBreakdown], spans: Sequence[TimeSpan]) -> list[Row]:
    bars: dict[tuple[str, str], list[Bar]] = {}
    for span in spans:
        lane = "busy" if span.kind == "host_op" else span.kind
        bars.setdefault((span.device, lane), []).append(Bar(span.start_s, span.end_s, span.what))
    rows: list[Row] = []
    for number, share in enumerate(times):
        for lane, label in LANES.items():
            drawn = bars.get((share.device, lane), [])
            if drawn:
                taken_s = sum(bar.finish_s - bar.start_s for bar in drawn)
                note = f"{label} {format_seconds(taken_s)}"
                rows.append(Row(share.device, drawn, note, number))
    return rows


def _draw_pair(
    root: ET.Element,
    y: float,
    name: str,
    colours: tuple[str, str],
    line: PredictionRow,
    longest_s: float,
) -> None:
    light, dark = colours
    left, room = MARGIN + NAMES, WIDTH - LEFT - MARGIN - NAMES
    add_text(root, MARGIN, y + 14, fit(name, NAMES - 8), fill=dark)
    drawn = ("predicted", line.predicted_s, light), ("measured", line.measured_s, dark)
    for row, (what, seconds, fill) in enumerate(drawn):
        if not seconds:
            continue  # no prediction
        top, width = y + row * (THICK + 1), max(seconds / longest_s * room, 0.5)
        bar = add_rect(root, left, top, width, THICK, fill, dark)
        add_tip(bar, f"{name}, {what}: {format_seconds(seconds)}")
        add_text(root, left + width + 5, top + 9, format_seconds(seconds))
