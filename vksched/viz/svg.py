"""SVG: shapes, texts and tooltips of a picture, and its file.

    new_picture(960, 226, "20 tasks") --> root --add_rect, add_text, add_path, add_tip--> as_text

Texts may hold any characters: the ones that XML does not allow are replaced. Equal calls give equal
text.

Complexity: elements. Examples: tests/viz/test_svg.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from xml.etree import ElementTree as ET

from ..common.errors import PlanError

COLOURS = (
    ("#dcebf7", "#0072b2"),
    ("#fdeecf", "#b87a00"),
    ("#d8f0e8", "#00795a"),
    ("#f6e1ed", "#a8507f"),
    ("#e6f3fb", "#2f86b8"),
    ("#fbe3d5", "#b34a00"),
)
"""Light and dark colour of each device, distinct for colour-blind readers (Okabe, Ito)."""
CROSSING = "#c00000"
"""Colour of values that go from one device to another."""
INK = "#111111"
CHAR = 6.1
"""Width of a letter of size 10, the default of texts."""


def colours_of(device: int) -> tuple[str, str]:
    """Return the light and the dark colour of a device; they repeat from the seventh on."""
    return COLOURS[device % len(COLOURS)]


def save_picture(path: str | os.PathLike[str], draw: Callable[[], str]) -> None:
    """Write the text that `draw` returns, which is called after a check of the name.

    Raises
    ------
    PlanError
        The name does not end in .svg, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise PlanError(f"[draw] expected a name that ends in .svg, got {str(path)!r}")
    try:
        target.write_text(draw(), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"[draw] cannot write {target}: {error.strerror or error}") from error


def new_picture(width: float, height: float, title: str) -> ET.Element:
    """Return an empty white picture. title: its tooltip."""
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
    )
    root.set("font-family", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    root.set("font-size", "10")
    add_tip(root, title)
    ET.SubElement(root, "rect", width="100%", height="100%", fill="#ffffff")
    return root


def as_text(root: ET.Element) -> str:
    """Return a picture as the text of an SVG file."""
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def framed(picture: str, title: str, text: str) -> str:
    """Return a picture as HTML for a notebook, with a collapsible text below it."""
    drawn = picture.partition("?>")[2]
    return (
        f'<div style="max-width:100%;overflow:auto">{drawn}</div>'
        f"<details><summary>{escape(clean(title))}</summary>"
        f"<pre>{escape(clean(text))}</pre></details>"
    )


def add_text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    fill: str = INK,
    weight: str = "normal",
    anchor: str = "start",
    size: str = "",
) -> None:
    """Add a line of text. y: its base line. size: "" for 10."""
    attributes = {"x": as_pixels(x), "y": as_pixels(y), "fill": fill}
    if weight != "normal":
        attributes["font-weight"] = weight
    if anchor != "start":
        attributes["text-anchor"] = anchor
    if size:
        attributes["font-size"] = size
    ET.SubElement(parent, "text", attributes).text = clean(text)


def add_rect(
    parent: ET.Element,
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    stroke: str,
    thick: str = "1",
) -> ET.Element:
    """Add a rectangle, and return it for a tooltip or other attributes."""
    place = {
        "x": as_pixels(x),
        "y": as_pixels(y),
        "width": as_pixels(width),
        "height": as_pixels(height),
    }
    look = {"fill": fill, "stroke": stroke, "stroke-width": thick}
    return ET.SubElement(parent, "rect", {**place, **look})


def add_tip(parent: ET.Element, text: str) -> None:
    """Add a tooltip to an element."""
    ET.SubElement(parent, "title").text = clean(text)


def fit(text: str, width: float) -> str:
    """Return a text, truncated to a width."""
    many = int(width / CHAR + 1e-9)
    return text if len(text) <= many else text[: max(many - 1, 0)] + "…"


def as_pixels(value: float) -> str:
    """Return a coordinate to a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").removesuffix(".")


def clean(text: str) -> str:
    """Return a text without the characters that XML 1.0 does not allow."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates
    bad = "\ufffe\uffff"
    return "".join(c if (c >= " " or c in "\n\t") and c not in bad else "\ufffd" for c in text)
