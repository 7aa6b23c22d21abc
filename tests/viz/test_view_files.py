"""Timelines as data of the page, as files, and in notebooks."""

from __future__ import annotations

import json
import re
import sys
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from timelines import sample_timeline

from vksched.common.errors import VkschedError
from vksched.viz.timeline.build import plan_timeline
from vksched.viz.timeline.html_export import as_page
from vksched.viz.timeline.page_data import as_script, page_data
from vksched.viz.timeline.timeline import Timeline
from vksched.viz.timeline.timeline_types import ROWS, Lane, NodeView, PlanView, SplitView

SVG = "{http://www.w3.org/2000/svg}"


def unfold(column: object, count: int) -> list[int]:
    return column if isinstance(column, list) else [column] * count  # type: ignore[list-item]


def test_the_page_has_a_height_for_every_row() -> None:
    script = (resources.files("vksched.viz.timeline") / "page" / "canvas.js").read_text("utf-8")
    heights = re.search(r"const HIGH = \{(.*?)\}", script, re.DOTALL)
    assert heights is not None
    assert set(re.findall(r'"?([a-z][a-z_ ]*)"?: \d', heights[1])) == set(ROWS)


def test_the_columns_of_the_page_say_what_the_timeline_says() -> None:
    timeline = sample_timeline(3)
    data = json.loads(as_script(page_data(timeline)))
    count, links = data["counts"]
    assert (count, links) == (len(timeline.spans), len(timeline.links))
    reported = data["spans"]
    names = [data["texts"][i] for i in unfold(reported["name"], count)]
    at, starts = 0, []
    for step in reported["step"]:
        at += step
        starts.append(at / data["ticks"])
    found = sorted(zip(names, starts, [t / data["ticks"] for t in reported["took"]], strict=True))
    wanted = sorted((s.name, s.start_s, s.seconds) for s in timeline.spans)
    assert [name for name, *_ in found] == [name for name, *_ in wanted]
    for (_, start, took), (_, start_s, seconds) in zip(found, wanted, strict=True):
        assert start == pytest.approx(start_s, abs=1e-9)
        assert took == pytest.approx(seconds, abs=2e-9)
    assert sum(unfold(reported["critical"], count)) == len(timeline.critical)
    assert sum(track[3] for track in data["tracks"]) == count
    sources = unfold(data["links"]["source"], links)
    wanted_names = [timeline.spans[link.source].name for link in timeline.links]
    assert [names[i] for i in sources] == wanted_names


def test_texts_cannot_leave_their_place_in_the_page() -> None:
    evil = "</script><script>alert(1)</script><!-- & \u2028 \ud800 '\""
    node = NodeView(evil, evil, evil, (evil,), 1.0, evil)
    view = PlanView(evil, evil, [node], [SplitView(1, (0,))], [])
    page = as_page(plan_timeline(view, [Lane("host"), Lane(evil, evil)]))
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2
    assert page.encode("utf-8")


def test_a_file_has_the_form_that_its_name_says(tmp_path: Path) -> None:
    timeline = sample_timeline(2)
    timeline.save(tmp_path / "a.HTML")
    timeline.save(str(tmp_path / "a.svg"))
    assert (tmp_path / "a.HTML").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert ET.parse(tmp_path / "a.svg").getroot().tag == f"{SVG}svg"
    with pytest.raises(VkschedError, match=r"ends in \.html, \.svg or \.png, got 'a\.gif'"):
        timeline.save("a.gif")
    with pytest.raises(VkschedError, match="cannot write"):
        timeline.save(tmp_path / "none" / "a.svg")


def test_the_picture_has_predicted_rows_below_measured_ones_and_marks_the_path() -> None:
    timeline = sample_timeline(1)
    root = ET.fromstring(timeline._repr_svg_())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    rows = [t for t in texts if t in ("runs", "work", "measured", "predicted", "ops, predicted")]
    assert rows[:3] == ["runs", "work", "predicted"]
    assert rows[3:6] == ["measured", "predicted", "ops, predicted"]
    dashed = [rect for rect in root.iter(f"{SVG}rect") if rect.get("stroke-dasharray")]
    predicted = [span for span in timeline.spans if span.row in ("predicted", "ops")]
    assert len(dashed) == len(predicted)
    marks = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == "#b3005e"]
    assert len(marks) == len(timeline.critical)
    tips = [tip.text or "" for tip in root.iter(f"{SVG}title")]
    assert any("float32[1,64]" in tip and "predicted 20 us" in tip for tip in tips)


def test_png_through_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = sample_timeline(2)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib", None)
        without.setitem(sys.modules, "matplotlib.figure", None)
        without.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        with pytest.raises(VkschedError, match=r'pip install "vksched\[view\]", or \.svg'):
            timeline.save(tmp_path / "a.png")
    pytest.importorskip("matplotlib")
    timeline.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    frame = sample_timeline(1)._repr_html_()
    root = ET.fromstring(frame)
    assert root.tag == "iframe"
    assert root.get("sandbox") == "allow-scripts"
    assert root.get("srcdoc", "").startswith("<!DOCTYPE html>")


def test_a_notebook_does_not_swell_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vksched.viz.timeline.timeline.LARGEST", 1000)
    shown = sample_timeline(1)._repr_html_()
    assert "<svg" in shown and "<iframe" not in shown and "save(" in shown


def test_an_empty_timeline_is_a_page_too() -> None:
    empty = Timeline("nothing", "", [Lane("host")], [])
    assert json.loads(as_script(page_data(empty)))["counts"] == [0, 0]
    assert as_page(empty) and empty._repr_svg_()
