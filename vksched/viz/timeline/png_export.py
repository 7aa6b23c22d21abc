"""PNG export: a timeline as a bitmap, by matplotlib, an optional dependency.

Examples: tests/viz/test_view_files.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...common.errors import VkschedError
from ...common.formatting import format_moment
from ..gantt import MARK, Row, joined
from ..svg import colours_of
from .row_layout import lay_out
from .svg_export import KEY, row_of, shown_part
from .timeline_types import TimelineValue

WIDE, ROW, DPI = 12.0, 0.34, 120
"""Inches of the picture and of a row; pixels per inch."""
ROOM = 0.8
"""The share of the width for the time axis."""
CHAR = 0.075
"""Inches of a letter."""


def save_png(timeline: TimelineValue, path: Path) -> None:
    """Write the picture.

    Raises
    ------
    VkschedError
        Matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise VkschedError(
            '[timeline] PNG needs matplotlib; try pip install "vksched[view]", or .svg'
        ) from error
    timeline = shown_part(timeline)
    tracks = [track for track in lay_out(timeline.lanes, timeline.spans) if track.spans]
    rows = [row_of(timeline, track) for track in tracks]
    figure = Figure((WIDE, 1.3 + ROW * max(len(rows), 1)), DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    end_s = timeline.end_s or 1.0
    for at, row in enumerate(rows):
        _draw_row(axes, at, row, WIDE * ROOM / end_s)
    axes.set_yticks(range(len(rows)), [f"{row.name} {row.note}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end_s)
    axes.xaxis.set_major_formatter(lambda value, _: format_moment(max(value, 0.0)))
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.set_title(f"{timeline.title}\n{timeline.summary}", loc="left", fontsize=10)
    axes.set_xlabel(KEY if timeline.critical else "", fontsize=9)
    figure.savefig(path, format="png")


def _draw_row(axes: Any, at: int, row: Row, inches: float) -> None:
    """Draw a row. inches: the inches per second."""
    light, dark = colours_of(row.colour or 0)
    bars = list(joined(row.bars, inches * DPI, "span"))
    places = [(bar.start_s, bar.finish_s - bar.start_s) for bar in bars]
    axes.broken_barh(
        places,
        (at - 0.4, 0.8),
        facecolor="#ffffff" if row.dashed else light,
        edgecolor=dark,
        hatch="////" if row.dashed else None,
        linewidth=0.8,
        linestyle="--" if row.dashed else "-",
    )
    marked = [place for place, bar in zip(places, bars, strict=True) if bar.marked]
    axes.broken_barh(marked, (at - 0.4, 0.14), facecolor=MARK)
    for bar in bars:
        room = int((bar.finish_s - bar.start_s) * inches / CHAR) - 1
        name = ("◆ " if bar.marked else "") + bar.name
        if room >= 4:
            text = name if len(name) <= room else f"{name[: room - 1]}…"
            place = (bar.start_s + 0.5 * CHAR / inches, at + 0.05)
            axes.annotate(
                text,
                place,
                va="center",
                fontsize=7.5,
                annotation_clip=True,
                bbox={"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.6}
                if row.dashed
                else None,
            )
