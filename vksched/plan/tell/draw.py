"""Draw: a plan as a picture: devices side by side, time downwards, crossings with their bytes.

    scene.py: what is shown --> layout.py: where --> here: as SVG, with a tooltip on everything

Complexity: that of the layout. Examples: tests/plan/test_draw.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

from ...errors import PlanError
from ...units import count_of, format_bytes
from ..query import buffers
from ..value import PlanValue
from .geometry import CHAR, LINE, MARGIN, PAD, Layout, Line, lay_out
from .scene import Box, make_scene, shorten

# light and dark of each device, told apart by eyes that see no red or green too (Okabe and Ito)
COLOURS = (
    ("#dcebf7", "#0072b2"),
    ("#fdeecf", "#b87a00"),
    ("#d8f0e8", "#00795a"),
    ("#f6e1ed", "#a8507f"),
    ("#e6f3fb", "#2f86b8"),
    ("#fbe3d5", "#b34a00"),
)
CPU_COLOURS = ("#e9e9e9", "#555555")
CALLER_COLOURS = ("#ffffff", "#333333")
CROSSING = "#c00000"
FALLEN = "#c00000"
CAPTION_CHARS = 34
HEAD = 46.0
"""Height of the name and the label of a lane."""


def save_drawing(plan: PlanValue, path: str | os.PathLike[str]) -> None:
    """Writes the picture of a plan.

    Raises:
        PlanError: the name does not end in .svg, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise PlanError(f"[draw] expected a name that ends in .svg, got {str(path)!r}")
    try:
        target.write_text(draw_plan(plan), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"[draw] cannot write {target}: {error.strerror or error}") from error


def draw_plan(plan: PlanValue) -> str:
    """Returns the picture of a plan as SVG text; the same for the same plan."""
    scene = make_scene(plan)
    heads = {i: max(map(len, _head(plan, device))) for i, device in enumerate(scene.lanes)}
    layout = lay_out(scene, heads)
    legend = _legend(plan)
    fallen = any(box.fallen for box in scene.boxes)
    top = MARGIN + LINE * (len(legend) + 3 + fallen) + 12
    width = max(layout.width, 2 * MARGIN + CHAR * max(map(len, (scene.title, *legend)), default=0))
    height = top + HEAD + layout.height
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
    )
    root.set("font-family", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    root.set("font-size", "10")
    _tip(root, scene.title)
    ET.SubElement(root, "rect", width="100%", height="100%", fill="#ffffff")
    _draw_legend(root, plan, legend, scene.title, fallen)
    body = ET.SubElement(root, "g", transform=f"translate(0 {_n(top)})")
    _draw_lanes(body, plan, layout)
    inner = ET.SubElement(body, "g", transform=f"translate(0 {_n(HEAD)})")
    _draw_frames(inner, plan, layout)
    for line in sorted(layout.lines, key=lambda at: at.wire.kind == "crosses"):
        _draw_line(inner, line)
    for line in layout.lines:
        _draw_label(inner, line)
    for box in scene.boxes:
        _draw_box(inner, box, _colours(plan, scene.lanes[box.lane]))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _colours(plan: PlanValue, device: int | None) -> tuple[str, str]:
    if device is None:
        return CALLER_COLOURS
    cpu = plan.machine.devices[device].kind == "cpu"
    return CPU_COLOURS if cpu else COLOURS[device % len(COLOURS)]


def _head(plan: PlanValue, device: int | None) -> tuple[str, str]:
    """The two lines above a lane."""
    if device is None:
        return "caller", "inputs and outputs"
    spec = plan.machine.devices[device]
    return shorten(spec.name, CAPTION_CHARS), shorten(spec.label, CAPTION_CHARS)


def _legend(plan: PlanValue) -> list[str]:
    """A line for each device, those without work too."""
    sizes = buffers(plan)
    out: list[str] = []
    for device, spec in enumerate(plan.machine.devices):
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
    _text(root, MARGIN, y, title, weight="bold")
    for device, line in enumerate(legend):
        y += LINE + (3 if not device else 0)
        light, dark = _colours(plan, device)
        _rect(root, MARGIN, y - 8, 14, 9, light, dark)
        _text(root, MARGIN + 20, y, line)
    y += LINE + 3
    x = MARGIN
    samples = (
        ("crosses between devices", _style("crosses")),
        ("from or to the caller", _style("host")),
        ("stays on the device", _style("stays")),
    )
    for told, style in samples:
        ET.SubElement(root, "path", {"d": f"M{_n(x)} {_n(y - 3)}h24", **style})
        _text(root, x + 30, y, told)
        x += 30 + CHAR * (len(told) + 2)
    if fallen:
        y += LINE + 2
        _rect(root, MARGIN, y - 8, 14, 9, "#ffffff", FALLEN, "2")
        _text(root, MARGIN + 20, y, "numpy runs it, as no device can")


def _draw_lanes(body: ET.Element, plan: PlanValue, layout: Layout) -> None:
    for lane, device in zip(layout.lanes, layout.scene.lanes, strict=True):
        light, dark = _colours(plan, device)
        high = HEAD + layout.height
        band = _rect(body, lane.x - 4, 0, lane.width + 8, high, light, "none")
        band.set("fill-opacity", "0.35")
        name, label = _head(plan, device)
        _text(body, lane.x + PAD, 18, name, weight="bold", fill=dark, size="12")
        _text(body, lane.x + PAD, 32, label, fill=dark)


def _draw_frames(inner: ET.Element, plan: PlanValue, layout: Layout) -> None:
    for frame, x, y, width, height in layout.frames:
        aside = layout.lanes[frame.lane].gutter
        _, dark = _colours(plan, layout.scene.lanes[frame.lane])
        box = _rect(inner, x, y, width, height, "#ffffff", dark)
        box.set("fill-opacity", "0.6")
        box.set("stroke-dasharray", "4 3")
        _text(inner, x + aside, y + 15, frame.title, fill=dark)


def _style(kind: str) -> dict[str, str]:
    style = {"fill": "none", "stroke": "#777777", "stroke-width": "1.2"}
    if kind == "crosses":
        style.update(stroke=CROSSING, **{"stroke-width": "3"})
    elif kind == "host":
        style.update(stroke="#333333", **{"stroke-width": "2", "stroke-dasharray": "6 3"})
    return style


def _draw_line(inner: ET.Element, line: Line) -> None:
    group = ET.SubElement(inner, "g")
    _tip(group, line.wire.tip)
    corners = " ".join(f"{_n(x)},{_n(y)}" for x, y in line.points)
    style = {**_style(line.wire.kind), "stroke-linejoin": "round"}
    ET.SubElement(group, "polyline", {"points": corners, **style})
    x, y = line.points[-1]
    tip = f"M{_n(x - 3.5)} {_n(y - 6)}L{_n(x)} {_n(y)}L{_n(x + 3.5)} {_n(y - 6)}z"
    ET.SubElement(group, "path", d=tip, fill=style["stroke"])


def _draw_label(inner: ET.Element, line: Line) -> None:
    if line.at is None:
        return
    x, y = line.at
    crosses = line.wire.kind == "crosses"
    fill = CROSSING if crosses else "#333333"
    _text(inner, x, y + 3, line.wire.label, fill=fill, weight="bold" if crosses else "normal")


def _draw_box(inner: ET.Element, box: Box, colours: tuple[str, str]) -> None:
    light, dark = colours
    group = ET.SubElement(inner, "g")
    _tip(group, box.tip)
    edge = FALLEN if box.fallen else dark
    thick = "2" if box.fallen or box.output else "1"
    shape = _rect(group, box.x, box.y, box.width, box.height, light, edge, thick)
    shape.set("rx", "4")
    for i, text in enumerate(box.lines):
        y = box.y + 4 + LINE * (i + 0.75)
        middle = box.x + box.width / 2
        weight = "bold" if i == 0 else "normal"
        _text(group, middle, y, text, weight=weight, anchor="middle")


def _text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    fill: str = "#111111",
    weight: str = "normal",
    anchor: str = "start",
    size: str = "",
) -> None:
    attributes = {"x": _n(x), "y": _n(y), "fill": fill}
    if weight != "normal":
        attributes["font-weight"] = weight
    if anchor != "start":
        attributes["text-anchor"] = anchor
    if size:
        attributes["font-size"] = size
    ET.SubElement(parent, "text", attributes).text = _clean(text)


def _rect(
    parent: ET.Element,
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    stroke: str,
    thick: str = "1",
) -> ET.Element:
    place = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height)}
    look = {"fill": fill, "stroke": stroke, "stroke-width": thick}
    return ET.SubElement(parent, "rect", {**place, **look})


def _tip(parent: ET.Element, text: str) -> None:
    ET.SubElement(parent, "title").text = _clean(text)


def _clean(text: str) -> str:
    """Returns a text without what XML 1.0 cannot hold: names may have anything in them."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates
    bad = "\ufffe\uffff"
    return "".join(c if (c >= " " or c in "\n\t") and c not in bad else "\ufffd" for c in text)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
