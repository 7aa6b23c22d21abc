"""Timelines: rows of bars over time."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from vksched.viz.gantt import (
    LEFT,
    MARGIN,
    MOST_LINES,
    WIDTH,
    Bar,
    Row,
    Transfer,
    draw_timeline,
)
from vksched.viz.svg import CROSSING, colours_of

SVG = "{http://www.w3.org/2000/svg}"
INSIDE = WIDTH - LEFT - MARGIN


def read(text: str) -> ET.Element:
    return ET.fromstring(text)


def bars_of(root: ET.Element) -> list[tuple[float, float, str]]:
    """x, width and tooltip of each bar."""
    found = []
    for rect in root.iter(f"{SVG}rect"):
        tip = rect.find(f"{SVG}title")
        if rect.get("stroke", "none") != "none" and tip is not None:
            found.append((float(rect.get("x", "")), float(rect.get("width", "")), tip.text or ""))
    return found


def texts_of(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_bars_stand_at_their_times() -> None:
    rows = [Row("p0", [Bar(1.0, 3.0, "b"), Bar(0.0, 1.0, "a")], "75% busy"), Row("p1", [])]
    root = read(draw_timeline("title", "told", rows, span_s=4.0))
    assert bars_of(root) == [
        (LEFT, INSIDE / 4, "a: 0 s to 1 s"),
        (LEFT + INSIDE / 4, INSIDE / 2, "b: 1 s to 3 s"),
    ]
    texts = texts_of(root)
    assert texts[:2] == ["title", "told"]
    assert {"p0", "p1", "75% busy", "a", "b", "0 s", "4 s"} <= set(texts)


def test_each_row_has_its_colour() -> None:
    root = read(draw_timeline("", "", [Row(str(i), [Bar(0, 1, "x")]) for i in range(8)]))
    fills = [r.get("fill") for r in root.iter(f"{SVG}rect") if r.get("stroke", "none") != "none"]
    assert fills == [colours_of(i)[0] for i in range(8)]


def test_bars_that_share_a_pixel_are_joined_and_counted() -> None:
    short = [Bar(i * 1e-5, (i + 1) * 1e-5, f"s{i}") for i in range(50)]
    rows = [Row("p", [*short, Bar(0.5, 1.0, "long")])]
    root = read(draw_timeline("", "", rows, noun="split"))
    assert [tip for *_, tip in bars_of(root)] == ["50 splits: 0 s to 500 us", "long: 500 ms to 1 s"]


def test_crossings_go_from_row_to_row_until_they_are_too_many() -> None:
    rows = [Row("p", [Bar(0, 1, "a")]), Row("q", [Bar(3, 4, "b")])]
    down = Transfer(0, 1, 1.0, 3.0, "a to b: 8 bytes")
    up = Transfer(1, 0, 4.0, 6.0, "b to a: 8 bytes")
    root = read(draw_timeline("", "", rows, [down, up]))
    lines = [line for line in root.iter(f"{SVG}path") if line.get("stroke") == CROSSING]
    tips = [line.findtext(f"{SVG}title") for line in lines]
    assert tips == ["a to b: 8 bytes, 1 s to 3 s", "b to a: 8 bytes, 4 s to 6 s"]
    assert "6 s" in texts_of(root)  # the axis reaches the last transfer
    many = draw_timeline("", "", rows, [down] * (MOST_LINES + 1))
    assert CROSSING not in many


def test_nothing_and_no_time_are_drawn_too() -> None:
    assert bars_of(read(draw_timeline("", "", []))) == []
    root = read(draw_timeline("", "", [Row("p", [Bar(0, 0, "a"), Bar(0, 0, "b")])]))
    assert [tip for *_, tip in bars_of(root)] == ["2 tasks: 0 s to 0 s"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)).map(sorted), min_size=1, max_size=40)
)
def test_all_bars_are_inside_and_counted_once(times: list[list[float]]) -> None:
    bars = [Bar(start, finish, "one") for start, finish in times]
    found = bars_of(read(draw_timeline("", "", [Row("p", bars)])))
    assert all(LEFT <= x and x + width <= WIDTH - MARGIN + 0.52 for x, width, _ in found)
    counted = [tip.partition(":")[0] for *_, tip in found]
    assert sum(1 if name == "one" else int(name.split()[0]) for name in counted) == len(bars)


def test_times_that_no_clock_tells_apart_are_drawn_as_none() -> None:
    root = read(draw_timeline("", "", [Row("p", [Bar(0, 5e-324, "a"), Bar(0, 1e-16, "b")])]))
    assert [tip.partition(":")[0] for *_, tip in bars_of(root)] == ["2 tasks"]


def test_the_shortest_times_have_ticks() -> None:
    root = read(draw_timeline("", "", [Row("p", [Bar(0, 4e-9, "a")])]))
    assert {"0 s", "1 ns", "4 ns"} <= set(texts_of(root))
