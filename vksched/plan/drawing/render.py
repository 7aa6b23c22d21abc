"""Rendering: a plan as a picture, with devices in columns, time downwards, and transfers with their
bytes.

    scene.py: elements --> layout.py: positions --> here: SVG with a tooltip on each element

Complexity: that of the layout. Examples: tests/plan/test_draw.py.
"""

from __future__ import annotations

import os
from xml.etree import ElementTree as ET

from ...common.formatting import count_of, format_bytes
from ...viz.svg import (
    CHAR,
    CROSSING,
    add_rect,
    add_text,
    add_tip,
    as_pixels,
    as_text,
    colours_of,
    new_picture,
    save_picture,
)
from ..types.plan_types import PlanValue
from ..types.query import buffers
from .layout import LINE, MARGIN, PAD, Layout, Line, lay_out
from .scene import Box, make_scene, shorten

CPU_COLOURS = ("#e9e9e9", "#555555")
CALLER_COLOURS = ("#ffffff", "#333333")
FALLEN = "#c00000"
CAPTION_CHARS = 34
HEAD = 46.0
"""Height of the name and the label of a lane."""


def save_drawing(plan: PlanValue, path: str | os.PathLike[str]) -> None:
    """Write the picture of a plan.

    Raises
    ------
    PlanError
        The name does not end in .svg, or the file cannot be written.
    """
    save_picture(path, lambda: draw_plan(plan))


def draw_plan(plan: PlanValue) -> str:
    """Return the picture of a plan as SVG text. Equal plans have equal pictures."""
    scene = make_scene(plan)
    heads = {i: max(map(len, _head(plan, device))) for i, device in enumerate(scene.lanes)}
    layout = lay_out(scene, heads)
    legend = _legend(plan)
    fallen = any(box.fallen for box in scene.boxes)
    top = MARGIN + LINE * (len(legend) + 3 + fallen) + 12
    width = max(layout.width, 2 * MARGIN + CHAR * max(map(len, (scene.title, *legend)), default=0))
    height = top + HEAD + layout.height
    root = new_picture(width, height, scene.title)
    _draw_legend(root, plan, legend, scene.title, fallen)
    body = ET.SubElement(root, "g", transform=f"translate(0 {as_pixels(top)})")
    _draw_lanes(body, plan, layout)
    inner = ET.SubElement(body, "g", transform=f"translate(0 {as_pixels(HEAD)})")
    _draw_frames(inner, plan, layout)
    for line in sorted(layout.lines, key=lambda at: at.wire.kind == "crosses"):
        _draw_line(inner, line)
    for line in layout.lines:
        _draw_label(inner, line)
    for box in scene.boxes:
        _draw_box(inner, box, _colours(plan, scene.lanes[box.lane]))
    return as_text(root)


def _colours(plan: PlanValue, device: int | None) -> tuple[str, str]:
    if device is None:
        return CALLER_COLOURS
    cpu = plan.topology.devices[device].kind == "cpu"
    return CPU_COLOURS if cpu else colours_of(device)


def _head(plan: PlanValue, device: int | None) -> tuple[str, str]:
    """Return the two lines above a lane."""
    if device is None:
        return "caller", "inputs and outputs"
    spec = plan.topology.devices[device]
    return shorten(spec.name, CAPTION_CHARS), shorten(spec.label, CAPTION_CHARS)


def _legend(plan: PlanValue) -> list[str]:
    """Return a line for each device, including devices without work."""
    sizes = buffers(plan)
    out: list[str] = []
    for device, spec in enumerate(plan.topology.devices):
        here = [s for s in plan.splits if s.device == device]
        nodes, size = sum(len(s.nodes) for s in here), sizes[spec.name]
        out.append(
            f"{spec.name}: {count_of(nodes, 'node')} in {count_of(len(here), 'split')}, peak "
            f"{format_bytes(size.peak_bytes)} of {format_bytes(size.capacity_bytes)}"
        )
    return out


def _draw_legend(
    root: ET.Element, plan: PlanValue, legend: list[str], title: str, fallen: bool
) -> None:
    y = MARGIN + LINE
    add_text(root, MARGIN, y, title, weight="bold")
    for device, line in enumerate(legend):
        y += LINE + (3 if not device else 0)
        light, dark = _colours(plan, device)
        add_rect(root, MARGIN, y - 8, 14, 9, light, dark)
        add_text(root, MARGIN + 20, y, line)
    y += LINE + 3
    x = MARGIN
    samples = (
        ("crosses between devices", _style("crosses")),
        ("from or to the caller", _style("host")),
        ("stays on the device", _style("stays")),
    )
    for label, style in samples:
        ET.SubElement(root, "path", {"d": f"M{as_pixels(x)} {as_pixels(y - 3)}h24", **style})
        add_text(root, x + 30, y, label)
        x += 30 + CHAR * (len(label) + 2)
    if fallen:
        y += LINE + 2
        add_rect(root, MARGIN, y - 8, 14, 9, "#ffffff", FALLEN, "2")
        add_text(root, MARGIN + 20, y, "numpy runs it, as no device can")


def _draw_lanes(body: ET.Element, plan: PlanValue, layout: Layout) -> None:
    for lane, device in zip(layout.lanes, layout.scene.lanes, strict=True):
        light, dark = _colours(plan, device)
        high = HEAD + layout.height
        band = add_rect(body, lane.x - 4, 0, lane.width + 8, high, light, "none")
        band.set("fill-opacity", "0.35")
        name, label = _head(plan, device)
        add_text(body, lane.x + PAD, 18, name, weight="bold", fill=dark, size="12")
        add_text(body, lane.x + PAD, 32, label, fill=dark)


def _draw_frames(inner: ET.Element, plan: PlanValue, layout: Layout) -> None:
    for frame, x, y, width, height in layout.frames:
        aside = layout.lanes[frame.lane].gutter
        _, dark = _colours(plan, layout.scene.lanes[frame.lane])
        box = add_rect(inner, x, y, width, height, "#ffffff", dark)
        box.set("fill-opacity", "0.6")
        box.set("stroke-dasharray", "4 3")
        add_text(inner, x + aside, y + 15, frame.title, fill=dark)


def _style(kind: str) -> dict[str, str]:
    style = {"fill": "none", "stroke": "#777777", "stroke-width": "1.2"}
    if kind == "crosses":
        style.update(stroke=CROSSING, **{"stroke-width": "3"})
    elif kind == "host":
        style.update(stroke="#333333", **{"stroke-width": "2", "stroke-dasharray": "6 3"})
    return style


def _draw_line(inner: ET.Element, line: Line) -> None:
    group = ET.SubElement(inner, "g")
    add_tip(group, line.wire.tip)
    corners = " ".join(f"{as_pixels(x)},{as_pixels(y)}" for x, y in line.points)
    style = {**_style(line.wire.kind), "stroke-linejoin": "round"}
    ET.SubElement(group, "polyline", {"points": corners, **style})
    x, y = line.points[-1]
    left, middle, right = (as_pixels(x + dx) for dx in (-3.5, 0, 3.5))
    above = as_pixels(y - 6)
    tip = f"M{left} {above}L{middle} {as_pixels(y)}L{right} {above}z"
    ET.SubElement(group, "path", d=tip, fill=style["stroke"])


def _draw_label(inner: ET.Element, line: Line) -> None:
    if line.at is None:
        return
    x, y = line.at
    crosses = line.wire.kind == "crosses"
    fill = CROSSING if crosses else "#333333"
    add_text(inner, x, y + 3, line.wire.label, fill=fill, weight="bold" if crosses else "normal")


def _draw_box(inner: ET.Element, box: Box, colours: tuple[str, str]) -> None:
    light, dark = colours
    group = ET.SubElement(inner, "g")
    add_tip(group, box.tip)
    edge = FALLEN if box.fallen else dark
    thick = "2" if box.fallen or box.output else "1"
    shape = add_rect(group, box.x, box.y, box.width, box.height, light, edge, thick)
    shape.set("rx", "4")
    for i, text in enumerate(box.lines):
        y = box.y + 4 + LINE * (i + 0.75)
        middle = box.x + box.width / 2
        weight = "bold" if i == 0 else "normal"
        add_text(group, middle, y, text, weight=weight, anchor="middle")
