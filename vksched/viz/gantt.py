"""Gantt charts: a row for each device, time to the right, and lines between rows.

    p0 |aaaa|    |cc|
         \\____
              v
    p1        |bbbb|

Each bar has a tooltip with its name and times. Bars narrower than a pixel are joined with their
neighbours, so that browsers can open a picture of 100,000 bars.

Complexity: bars + lines, sorted. Examples: tests/viz/test_timeline.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from ..common.formatting import count_of, format_moment
from .svg import (
    CHAR,
    CROSSING,
    add_rect,
    add_text,
    add_tip,
    as_pixels,
    as_text,
    colours_of,
    fit,
    new_picture,
)

WIDTH, ROW, BAR = 960.0, 40.0, 24.0
LEFT, MARGIN, TOP = 130.0, 16.0, 62.0
MIN_S = 1e-15
"""Shorter times count as 0."""
MAX_LINES = 400
"""Maximum number of lines between rows: more would be illegible."""
MARK = "#b3005e"
"""Colour of marked bars."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval of time, with a tooltip.

    colour: its number, or None for the row's colour. marked: True to add a band and a diamond. tip:
    the text of the tooltip in place of name and times.
    """

    start_s: float
    finish_s: float
    name: str
    colour: int | None = None
    marked: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A device with its bars, in any order.

    note: a line below its name. colour: its number, or None for the position of the row. dashed:
    True for expected bars.
    """

    name: str
    bars: Sequence[Bar]
    note: str = ""
    colour: int | None = None
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer from one row to another, by their numbers."""

    source: int
    target: int
    start_s: float
    finish_s: float
    tip: str


def draw_timeline(
    title: str,
    subtitle: str,
    rows: Sequence[Row],
    transfers: Sequence[Transfer] = (),
    *,
    span_s: float = 0.0,
    noun: str = "task",
) -> str:
    """Return the picture as SVG text. Equal values give equal text.

    subtitle: a line below the title. span_s: the end of the axis, if it is after the last bar.
    noun: the name of the bars, for joined ones. More than 400 transfers are left out.
    """
    height = TOP + ROW * len(rows) + 44
    root = new_picture(WIDTH, height, title)
    add_text(root, MARGIN, 22, title, weight="bold", size="12")
    add_text(root, MARGIN, 40, subtitle)
    ends = [bar.finish_s for row in rows for bar in row.bars]
    span_s = max([span_s, *ends, *(c.finish_s for c in transfers)])
    span_s = span_s if span_s > MIN_S else 1.0
    scale = add_rows(root, rows, span_s, noun)
    if len(transfers) <= MAX_LINES:
        for transfer in transfers:
            _draw_transfer(root, transfer, scale)
    return as_text(root)


def add_rows(
    root: ET.Element, rows: Sequence[Row], span_s: float, noun: str, top: float = TOP
) -> float:
    """Add rows of height ROW, and 44 pixels for the axis; return the pixels per second."""
    scale = (WIDTH - LEFT - MARGIN) / span_s
    _draw_axis(root, span_s, scale, top, top + ROW * len(rows) + 10)
    for at, row in enumerate(rows):
        colours = colours_of(at if row.colour is None else row.colour)
        _draw_row(root, top + ROW * at, row, colours, scale, noun)
    return scale


def _draw_axis(root: ET.Element, span_s: float, scale: float, top: float, bottom: float) -> None:
    step_s = 10.0 ** math.floor(math.log10(span_s / 4))
    step_s *= next(k for k in (1, 2, 5, 10) if span_s / (step_s * k) <= 8)
    for tick in range(int(span_s / step_s + 1e-9) + 1):
        x = LEFT + tick * step_s * scale
        line = f"M{as_pixels(x)} {as_pixels(top - 6)}V{as_pixels(bottom)}"
        ET.SubElement(root, "path", d=line, stroke="#dddddd")
        add_text(root, x, bottom + 14, format_moment(tick * step_s), fill="#555555")


def _draw_row(
    root: ET.Element, y: float, row: Row, colours: tuple[str, str], scale: float, noun: str
) -> None:
    dark = colours[1]
    add_tip(add_rect(root, LEFT, y, WIDTH - LEFT - MARGIN, BAR, "#f6f6f6", "none"), row.name)
    add_text(root, MARGIN, y + 11, fit(row.name, LEFT - MARGIN - 6), weight="bold", fill=dark)
    if row.note:
        add_text(root, MARGIN, y + 22, fit(row.note, LEFT - MARGIN - 6), fill=dark)
    for bar in joined(row.bars, scale, noun):
        x, width = LEFT + bar.start_s * scale, max((bar.finish_s - bar.start_s) * scale, 0.5)
        times = f"{format_moment(bar.start_s)} to {format_moment(bar.finish_s)}"
        fill, edge = colours if bar.colour is None else colours_of(bar.colour)
        shape = add_rect(root, x, y, width, BAR, "#ffffff" if row.dashed else fill, edge)
        if row.dashed:
            shape.set("stroke-dasharray", "4 3")
        add_tip(shape, bar.tip or f"{bar.name}: {times}")
        if bar.marked:
            _draw_mark(root, x, y, width)
        aside = 13 if bar.marked and width > CHAR * 4 else 3
        if width > aside + CHAR * 2:
            add_text(root, x + aside, y + 15, fit(bar.name, width - aside - 2), fill=edge)


def _draw_mark(root: ET.Element, x: float, y: float, width: float) -> None:
    add_rect(root, x, y, width, 3, MARK, "none")
    if width > CHAR * 4:
        diamond = f"M{as_pixels(x + 7)} {as_pixels(y + 7)}l4 4.5l-4 4.5l-4 -4.5z"
        ET.SubElement(root, "path", d=diamond, fill=MARK)


def joined(bars: Sequence[Bar], scale: float, noun: str) -> Iterator[Bar]:
    """Yield bars in the order of time, with bars of one pixel joined."""
    lane = sorted(bars, key=lambda bar: (bar.start_s, bar.finish_s, bar.name))
    at = 0
    while at < len(lane):
        start_s, upto = lane[at].start_s, at + 1
        while upto < len(lane) and (lane[upto].finish_s - start_s) * scale < 1.0:
            upto += 1
        if upto == at + 1:
            yield lane[at]
        else:
            finish_s = max(bar.finish_s for bar in lane[at:upto])
            marked = any(bar.marked for bar in lane[at:upto])
            name = count_of(upto - at, noun)
            yield Bar(start_s, finish_s, name, lane[at].colour, marked)
        at = upto


def _draw_transfer(root: ET.Element, transfer: Transfer, scale: float) -> None:
    below = transfer.target > transfer.source
    y0 = TOP + ROW * transfer.source + (BAR if below else 0)
    y1 = TOP + ROW * transfer.target + (0 if below else BAR)
    x0, x1 = LEFT + transfer.start_s * scale, LEFT + transfer.finish_s * scale
    corners = f"M{as_pixels(x0)} {as_pixels(y0)}L{as_pixels(x1)} {as_pixels(y1)}"
    line = ET.SubElement(root, "path", d=corners, stroke=CROSSING, fill="none")
    line.set("stroke-opacity", "0.55")
    times = f"{format_moment(transfer.start_s)} to {format_moment(transfer.finish_s)}"
    add_tip(line, f"{transfer.tip}, {times}")
