"""Gantt: a schedule as a picture: a row a device, time to the right, transfers between rows.

    p0 |aaaa|    |cc|
         \\____
              v
    p1        |bbbb|

Each bar has a tooltip with its task and times. Bars that are narrower than a pixel are joined with
their neighbours, so that a schedule of 100,000 tasks stays a file that opens.

Complexity: tasks + transfers, sorted. Examples: tests/schedule/test_gantt.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from ..errors import PlanError
from .result import ScheduleValue

# light and dark of each device, told apart by eyes that see no red or green too (Okabe and Ito)
COLOURS = (
    ("#dcebf7", "#0072b2"),
    ("#fdeecf", "#b87a00"),
    ("#d8f0e8", "#00795a"),
    ("#f6e1ed", "#a8507f"),
    ("#e6f3fb", "#2f86b8"),
    ("#fbe3d5", "#b34a00"),
)
CROSSING = "#c00000"
WIDTH, ROW, BAR = 960.0, 40.0, 24.0
LEFT, MARGIN, TOP = 130.0, 16.0, 62.0
CHAR = 6.1
"""Width of a letter of size 10."""
ARROWS = 400
"""Transfers that are drawn as lines; more would only be red."""


def save_gantt(plan: ScheduleValue, path: str | os.PathLike[str]) -> None:
    """Writes the picture of a schedule.

    Raises:
        PlanError: the name does not end in .svg, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise PlanError(f"[draw] expected a name that ends in .svg, got {str(path)!r}")
    try:
        target.write_text(draw_gantt(plan), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"[draw] cannot write {target}: {error.strerror or error}") from error


def draw_gantt(plan: ScheduleValue) -> str:
    """Returns the picture of a schedule as SVG text; the same for the same schedule."""
    devices = plan.where.devices
    height = TOP + ROW * len(devices) + 44
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        width=f"{WIDTH:.0f}",
        height=f"{height:.0f}",
    )
    root.set("font-family", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    root.set("font-size", "10")
    ET.SubElement(root, "rect", width="100%", height="100%", fill="#ffffff")
    title = f"{len(plan.tasks)} tasks on {len(devices)} devices by {plan.policy}"
    ET.SubElement(root, "title").text = title
    _text(root, MARGIN, 22, title, weight="bold", size="12")
    told = f"{_seconds(plan.makespan_s)}, {plan.ratio:.3f} times the lower bound" + (
        f" ({_seconds(plan.period_s)} a run in a stream)" if plan.objective == "throughput" else ""
    )
    _text(root, MARGIN, 40, told)
    span = plan.makespan_s or 1.0
    scale = (WIDTH - LEFT - MARGIN) / span
    _draw_axis(root, span, scale, height)
    busy = plan.busy_s
    for row, device in enumerate(devices):
        y = TOP + ROW * row
        _, dark = COLOURS[row % len(COLOURS)]
        lane = _rect(root, LEFT, y, WIDTH - LEFT - MARGIN, BAR, "#f6f6f6", "none")
        _tip(lane, device)
        _text(root, MARGIN, y + 11, _shorten(device, LEFT - MARGIN - 6), weight="bold", fill=dark)
        _text(root, MARGIN, y + 22, f"{busy[device] / span:.0%} busy", fill=dark)
    for x, y, width, row, name, tip in _bars(plan, scale):
        light, dark = COLOURS[row % len(COLOURS)]
        bar = _rect(root, x, y, width, BAR, light, dark)
        _tip(bar, tip)
        if width > CHAR * 2:
            _text(root, x + 3, y + 15, _shorten(name, width - 5), fill=dark)
    if len(plan.transfers) <= ARROWS:
        _draw_transfers(root, plan, scale)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _bars(plan: ScheduleValue, scale: float) -> Iterator[tuple[float, float, float, int, str, str]]:
    """Yields x, y, width, row, name and tooltip; those that share a pixel are one bar."""
    rows = {name: row for row, name in enumerate(plan.where.devices)}
    lanes: list[list[tuple[float, float, str]]] = [[] for _ in rows]
    for name, device in plan.device.items():
        lanes[rows[device]].append((plan.start_s[name], plan.finish_s[name], name))
    for row, lane in enumerate(lanes):
        lane.sort()
        at = 0
        while at < len(lane):
            start, finish, name = lane[at]
            upto = at + 1
            while upto < len(lane) and (lane[upto][1] - start) * scale < 1.0:
                finish = lane[upto][1]
                upto += 1
            told = name if upto == at + 1 else f"{upto - at} tasks"
            tip = f"{told}: {_seconds(start)} to {_seconds(finish)}"
            width = max((finish - start) * scale, 0.5)
            yield LEFT + start * scale, TOP + ROW * row, width, row, told, tip
            at = upto


def _draw_transfers(root: ET.Element, plan: ScheduleValue, scale: float) -> None:
    rows = {name: row for row, name in enumerate(plan.where.devices)}
    for t in plan.transfers:
        source, target = rows[t.source], rows[t.target]
        below = target > source
        y0 = TOP + ROW * source + (BAR if below else 0)
        y1 = TOP + ROW * target + (0 if below else BAR)
        x0, x1 = LEFT + t.start_s * scale, LEFT + t.finish_s * scale
        line = ET.SubElement(
            root, "path", d=f"M{x0:.2f} {y0:.2f}L{x1:.2f} {y1:.2f}", stroke=CROSSING, fill="none"
        )
        line.set("stroke-opacity", "0.55")
        _tip(
            line,
            f"{t.producer} to {t.consumer}: {t.size_bytes:g} bytes, {_seconds(t.start_s)} to "
            f"{_seconds(t.finish_s)}",
        )


def _draw_axis(root: ET.Element, span: float, scale: float, height: float) -> None:
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(k for k in (1, 2, 5, 10) if span / (step * k) <= 8)
    for tick in range(int(span / step + 1e-9) + 1):
        x = LEFT + tick * step * scale
        ET.SubElement(root, "path", d=f"M{x:.2f} {TOP - 6:.2f}V{height - 34:.2f}", stroke="#dddddd")
        _text(root, x, height - 20, _seconds(tick * step), fill="#555555")


def _seconds(value: float) -> str:
    """Returns a time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def _shorten(text: str, width: float) -> str:
    many = int(width / CHAR)
    return text if len(text) <= many else text[: max(many - 1, 0)] + "…"


def _tip(of: ET.Element, text: str) -> None:
    ET.SubElement(of, "title").text = text


def _rect(
    root: ET.Element, x: float, y: float, width: float, height: float, fill: str, stroke: str
) -> ET.Element:
    return ET.SubElement(
        root,
        "rect",
        x=f"{x:.2f}",
        y=f"{y:.2f}",
        width=f"{width:.2f}",
        height=f"{height:.2f}",
        fill=fill,
        stroke=stroke,
    )


def _text(
    root: ET.Element,
    x: float,
    y: float,
    text: str,
    weight: str = "",
    fill: str = "#111111",
    size: str = "",
) -> None:
    out = ET.SubElement(root, "text", x=f"{x:.2f}", y=f"{y:.2f}", fill=fill)
    if weight:
        out.set("font-weight", weight)
    if size:
        out.set("font-size", size)
    out.text = text
