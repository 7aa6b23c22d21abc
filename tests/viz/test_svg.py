"""Pictures as SVG text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from vksched.common.errors import PlanError
from vksched.viz.svg import (
    CHAR,
    COLOURS,
    add_rect,
    add_text,
    add_tip,
    as_pixels,
    as_text,
    colours_of,
    fit,
    new_picture,
    save_picture,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_shapes_and_texts_stand_where_they_were_put() -> None:
    root = new_picture(100, 50, "all")
    add_tip(add_rect(root, 1, 2.128, 30, 4, "#ffffff", "none", "2"), "tip")
    add_text(root, 5, 6, "word", weight="bold", anchor="middle", size="12")
    add_text(root, 7, 8, "plain")
    read = ET.fromstring(as_text(root))
    assert (read.get("viewBox"), read.get("width")) == ("0 0 100 50", "100")
    assert [tip.text for tip in read.iter(f"{SVG}title")] == ["all", "tip"]
    rect = list(read.iter(f"{SVG}rect"))[1]
    place = [rect.get(name) for name in ("x", "y", "width", "height", "stroke-width")]
    assert place == ["1", "2.13", "30", "4", "2"]
    word, plain = read.iter(f"{SVG}text")
    look = {"fill": "#111111", "font-weight": "bold", "text-anchor": "middle", "font-size": "12"}
    assert word.attrib == {"x": "5", "y": "6", **look}
    assert plain.attrib == {"x": "7", "y": "8", "fill": "#111111"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (100.0, "100"),
        (1.5, "1.5"),
        (-3.25, "-3.25"),
        (1e6, "1000000"),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_coordinates_have_no_needless_digits(value: float, text: str) -> None:
    assert as_pixels(value) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        *((same, same) for same in ("<a&b>", "]]>", "tab\tline\n", "日本", "\x85")),
        *(("a\x00b", "a\ufffdb"), ("\ud800", "?"), ("\ufffe", "\ufffd")),
    ],
)
def test_any_text_gives_xml_that_opens(text: str, seen: str) -> None:
    root = new_picture(10, 10, text)
    add_text(root, 0, 0, text)
    read = ET.fromstring(as_text(root).encode("utf-8"))
    assert next(read.iter(f"{SVG}text")).text == seen
    assert next(read.iter(f"{SVG}title")).text == seen


def test_long_texts_are_cut_to_their_place() -> None:
    assert fit("abcdef", 6 * CHAR) == "abcdef"
    assert fit("abcdefg", 6 * CHAR) == "abcde…"
    assert fit("abc", 0) == "…"


def test_the_seventh_device_has_the_first_colour_again() -> None:
    assert [colours_of(device) for device in range(7)] == [*COLOURS, COLOURS[0]]


def test_wrong_names_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"\[draw\] expected a name that ends in \.svg, got 'x\.png'"
    ):
        save_picture("x.png", lambda: pytest.fail("drawn"))
    with pytest.raises(PlanError, match=r"\[draw\] cannot write .*: No such file"):
        save_picture(tmp_path / "none" / "x.svg", lambda: "")
    save_picture(tmp_path / "x.SVG", lambda: "…")
    assert (tmp_path / "x.SVG").read_text("utf-8") == "…"
