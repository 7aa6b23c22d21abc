"""The page of a timeline in a real browser: no network, mouse, keyboard, colours, many events."""

from __future__ import annotations

import io
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, Page, find_chromium
from PIL import Image
from timelines import LANES, copying_tape, sample_events, sample_plan, sample_timeline

import vksched as vs
from vksched.viz.timeline.build import plan_timeline, run_timeline
from vksched.viz.timeline.html_export import as_page
from vksched.viz.timeline.timeline import Timeline
from vksched.viz.timeline.timeline_types import PREDICTED_ROWS, ROWS, Counter, Span

pytestmark = pytest.mark.timeout(240)

IDLE = "document.getElementById('tip').hidden"
WIDE = "vksched.view.to - vksched.view.from"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if find_chromium() is None:
        pytest.skip("no Chromium or Chrome is installed")
    pytest.importorskip("websockets", reason="the browser is driven over a WebSocket")
    try:
        started = Chromium()
    except OSError as error:
        pytest.skip(f"Chromium does not start here: {error}")
    with started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "runs.html"
    sample_timeline(3).save(path)
    return path


@pytest.fixture
def page(browser: Chromium, file: Path) -> Iterator[Page]:
    opened = browser.open(file)
    yield opened
    assert opened.complaints == []
    assert opened.requests == [file.as_uri()]
    opened.close()


def find(page: Page, kind: str, split: int, row: str = "work", run: int = 0) -> int:
    """The number of a span."""
    found: int = page.run(
        f"""vksched.span.kind.findIndex((k, i) => vksched.texts[k] === "{kind}"
        && vksched.span.split[i] === {split} && vksched.span.run[i] === {run}
        && vksched.tracks[vksched.span.track[i]].row === "{row}")"""
    )
    assert found >= 0
    return found


def place(page: Page, number: int) -> tuple[float, float]:
    at = page.run(f"vksched.placeOf({number})")
    return at["x"], at["y"]


def selected(page: Page) -> int:
    number: int = page.run("vksched.view.selected")
    return number


def text_of(page: Page, name: str) -> str:
    text: str = page.run(f"document.getElementById('{name}').innerText")
    return text


# -- the network -----------------------------------------------------------------------------------


def test_the_page_asks_for_nothing_and_may_not(browser: Chromium, file: Path) -> None:
    page = browser.open(file)
    assert page.requests == [file.as_uri()]
    assert page.run("document.title") == "3 runs on gpu:0, gpu:1"
    assert "http" not in re.sub(r"http-equiv", "", file.read_text("utf-8"))
    text = page.run("fetch('https://example.org/').then(() => 'came', (e) => String(e))")
    assert "Failed to fetch" in text
    stopped = page.complaints  # the page's own policy refuses it, before any network does
    assert stopped and all("Content Security Policy" in line for line in stopped)
    page.close()


# -- the mouse -------------------------------------------------------------------------------------


def test_the_wheel_zooms_around_the_mouse(page: Page) -> None:
    number = find(page, "split", 1)
    x, y = place(page, number)
    before = page.run(WIDE)
    page.wheel(x, y, -120)
    page.wheel(x, y, -120)
    assert page.run(WIDE) < 0.7 * before
    nearer_x, _ = place(page, number)
    assert nearer_x == pytest.approx(x, abs=60)
    page.wheel(x, y, 120)
    page.wheel(x, y, 120)
    assert page.run(WIDE) == pytest.approx(before, rel=0.15)


def test_dragging_moves_the_time(page: Page) -> None:
    page.run("vksched.zoom(0.2)")
    page.settle()
    before, wide = page.run("vksched.view.from"), page.run(WIDE)
    page.drag(900, 640, 700, 640)
    assert page.run(WIDE) == pytest.approx(wide)
    moved = page.run("vksched.view.from") - before
    assert moved == pytest.approx(wide * 200 / (1280 - 200), rel=0.05)
    assert selected(page) == -1  # a drag is no click


def test_the_tooltip_tells_op_shapes_predicted_and_measured_time(page: Page) -> None:
    assert page.run(IDLE)
    page.move(*place(page, find(page, "split", 2)))
    assert not page.run(IDLE)
    tip = text_of(page, "tip")
    for part in ("split 2: layer6 .. layer8", "split on gpu:0", "matmul, relu, softmax",
                 "float32[7,64]", "measured", "predicted", "190 us", "times as long"):  # fmt: skip
        assert part in tip
    page.move(*place(page, find(page, "op", 2, "ops")))
    tip = text_of(page, "tip")
    assert "layer6" in tip and "float32[7,64]" in tip and "x float32[1,64]" in tip
    assert "20 us" in tip and "measured" not in tip
    page.move(640, 780)
    assert page.run(IDLE)


def test_predicted_is_drawn_below_measured(page: Page) -> None:
    for split in range(4):
        lower = place(page, find(page, "split", split, "predicted"))[1]
        assert 0 < lower - place(page, find(page, "split", split))[1] < 40
    rows = page.run("vksched.tracks.filter((t) => t.lane === 1).map((t) => t.row)")
    assert list(dict.fromkeys(rows)) == ["work", "predicted", "ops"]


def test_a_click_shows_explain_and_what_waited_for_what(page: Page) -> None:
    number = find(page, "split", 1)
    page.click(*place(page, number))
    assert selected(page) == number
    panel = text_of(page, "panel")
    before = "copy: split 0: layer0 .. layer2, 4.0 KiB"
    for part in ("split 1: layer3 .. layer5", "Waited for", before,
                 "Waited for this", "fence: wait for split 1", "layer3: explained"):  # fmt: skip
        assert part in panel
    heads = page.run("[...document.querySelectorAll('#explain summary')].map((e) => e.textContent)")
    assert heads == [f"layer{n}: {op}, 20 us" for n, op in
                     zip((3, 4, 5), ("matmul", "relu", "softmax"), strict=True)]  # fmt: skip
    links = page.run(f"vksched.linksOf({number})")
    assert len(links["into"]) == 2 and len(links["from"]) == 2
    page.run("[...document.querySelectorAll('#panel li button')][1].click()")
    page.settle()
    assert selected(page) == find(page, "split", 0)  # a link leads there
    page.click(1000, 640)  # nowhere
    assert selected(page) == -1 or page.run("document.getElementById('panel').hidden") is False


def test_arrows_are_drawn_of_wide_spans_alone(page: Page) -> None:
    number = find(page, "split", 1)
    page.run(f"vksched.select({number}, 'close'); vksched.select(-1)")
    page.run("vksched.zoom(8)")
    page.settle()
    before = page.picture()
    page.press("a")
    assert page.run("document.getElementById('arrows').getAttribute('aria-pressed')") == "true"
    assert page.picture() != before
    ink = (0x15, 0x19, 0x1C)
    assert count_of(page.picture(), ink) > count_of(before, ink) + 100


def test_a_double_click_zooms_to_a_span(page: Page) -> None:
    number = find(page, "split", 3)
    page.click(*place(page, number), count=2)
    took = page.run(f"vksched.span.end[{number}] - vksched.span.start[{number}]")
    assert page.run(WIDE) == pytest.approx(1.3 * took, rel=0.01)


# -- the keyboard ----------------------------------------------------------------------------------


def test_keys_zoom_and_pan(page: Page) -> None:
    whole = page.run(WIDE)
    page.press("+")
    page.press("+")
    assert page.run(WIDE) == pytest.approx(whole / 2.25, rel=0.02)
    start = page.run("vksched.view.from")
    page.press("ArrowRight")
    assert page.run("vksched.view.from") > start
    page.press("ArrowLeft")
    assert page.run("vksched.view.from") == pytest.approx(start)
    page.press("-")
    page.press("0")
    assert page.run(WIDE) == pytest.approx(whole)


def test_spans_are_reached_and_reported_by_keys_alone(page: Page) -> None:
    page.press("ArrowRight", shift=True)  # selects one in the middle
    first = selected(page)
    assert first >= 0 and not page.run(IDLE)
    page.press("ArrowRight", shift=True)
    assert selected(page) == first + 1
    text = text_of(page, "status")
    assert "split on gpu" in text and "measured" in text and "predicted" in text
    page.press("ArrowDown", shift=True)
    row = page.run("vksched.tracks[vksched.span.track[vksched.view.selected]].row")
    assert row == "predicted"
    page.press("Enter")
    assert page.run("document.activeElement.id") == "panel"
    assert "explained" in text_of(page, "panel")
    page.press("Escape")
    assert page.run("document.getElementById('panel').hidden")
    assert page.run("document.activeElement.id") == "view"
    assert selected(page) == -1


def test_the_critical_path_is_walked_and_marked(page: Page) -> None:
    seen = []
    for _ in range(4):
        page.press("c")
        seen.append(selected(page))
    assert seen == page.run("vksched.criticalPath.slice(0, 4)")
    assert all(page.run(f"vksched.span.critical[{n}]") for n in seen)
    page.press("C", shift=True)
    assert selected(page) == seen[2]
    page.press("f")
    number = page.run(
        "vksched.criticalPath.find((n) => vksched.texts[vksched.span.kind[n]] === 'split')"
    )
    page.run(f"vksched.select({number}, 'close')")
    page.settle()
    colour = page.run("getComputedStyle(document.documentElement).getPropertyValue('--critical')")
    x, y = place(page, number)
    top = page.run(f"vksched.tracks[vksched.span.track[{number}]].high") / 2
    assert colours_at(page, (x, y - top + 2)) == [hex_of(colour)]


def test_search_by_op_shape_and_name(page: Page) -> None:
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    page.type("softmax")
    found = text_of(page, "found")
    splits, ops = 3 * 4 * 2, 3 * 4
    assert found == f"{splits + ops} found"
    page.press("Enter")
    page.press("Enter")
    assert text_of(page, "found") == f"2 of {splits + ops}"
    assert page.run("vksched.view.matches.has(vksched.view.selected)")
    page.press("Escape")
    assert page.run("vksched.view.matches") is None
    page.press("/")
    page.type("[12,64]")
    assert text_of(page, "found") == f"{3 * 2 + 3} found"
    page.press("Escape")
    page.press("/")
    page.type("none of it")
    assert text_of(page, "found") == "0 found"
    page.press("Enter")


def test_help_opens_and_closes_by_keys_and_names_each_key(page: Page) -> None:
    page.press("?")
    assert page.run("document.getElementById('keys').open")
    reported = text_of(page, "keys-table")
    for key in ("+", "-", "Shift+→", "Enter", "Escape", "/", "c", "t", "?"):
        assert key in reported
    page.press("Escape")
    assert not page.run("document.getElementById('keys').open")


def test_tab_goes_through_everything_and_the_focus_is_seen(page: Page) -> None:
    reached = []
    for _ in range(12):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id"))
        if reached[-1]:
            outline = page.run("getComputedStyle(document.activeElement).outlineWidth")
            assert outline == "3px", reached[-1]
    wanted = ["search", "critical", "arrows", "out", "in", "all", "theme", "help", "view"]
    assert [name for name in reached if name][: len(wanted)] == wanted


# -- colours ---------------------------------------------------------------------------------------

COLOURS = """(() => {
  const style = getComputedStyle(document.documentElement), out = {};
  for (const name of ["ground", "raised", "band", "ink", "faint", "critical", "warn", "focus",
    "host", "host-edge", ...[0, 1, 2, 3, 4, 5].flatMap((i) => [`fill${i}`, `edge${i}`])]) {
    out[name] = style.getPropertyValue(`--${name}`).trim();
  }
  return out;
})()"""


def hex_of(colour: str) -> tuple[int, int, int]:
    digits = colour.strip().lstrip("#")
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)


def contrast(one: str, other: str) -> float:
    """The ratio of luminances that the Web Content Accessibility Guidelines 2.2 define."""

    def luminance(colour: str) -> float:
        parts = [c / 255 for c in hex_of(colour)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def colours_at(page: Page, *places: tuple[float, float]) -> list[tuple[int, int, int]]:
    """The colours that are seen at places of the page."""
    image = Image.open(io.BytesIO(page.picture())).convert("RGB")
    return [image.getpixel((round(x), round(y))) for x, y in places]  # type: ignore[misc]


def count_of(picture: bytes, colour: tuple[int, int, int]) -> int:
    """How many pixels of the timeline, without its tools, have a colour."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").crop((200, 120, 1280, 760))
    return next((many for many, found in image.getcolors(1 << 24) or () if found == colour), 0)


def check_contrast(colours: dict[str, str]) -> None:
    fills = ["host", *(f"fill{i}" for i in range(6))]
    for under in ("ground", "raised", "band", *fills):
        assert contrast(colours["ink"], colours[under]) >= 7, under
    for under in ("ground", "raised", "band"):
        assert contrast(colours["faint"], colours[under]) >= 4.5, under
        for mark in ("critical", "warn", "focus", "host-edge", *(f"edge{i}" for i in range(6))):
            assert contrast(colours[mark], colours[under]) >= 3, (mark, under)
    for i, fill in enumerate(fills[1:]):
        assert contrast(colours[f"edge{i}"], colours[fill]) >= 3, fill
        assert contrast(colours["critical"], colours[fill]) >= 3, fill


def test_both_schemes_have_contrast_and_follow_the_system_and_the_switch(
    browser: Chromium, file: Path
) -> None:
    page = browser.open(file)
    light = page.run(COLOURS)
    page.set_dark(True)
    page.settle()
    dark = page.run(COLOURS)
    assert light["ground"] != dark["ground"]
    assert contrast(light["ground"], "#ffffff") < 1.5 and contrast(dark["ground"], "#000000") < 1.5
    check_contrast(light)
    check_contrast(dark)
    assert colours_at(page, (700, 700))[0] in (hex_of(dark["ground"]), hex_of(dark["band"]))
    page.press("t")
    assert page.run(COLOURS) == light
    assert text_of(page, "theme") == "Dark"
    page.close()


def test_kinds_differ_without_colours(page: Page) -> None:
    """Splits, copies, waits and predicted splits have patterns of light and dark of their own."""
    page.run("vksched.view.matches = null")
    patterns = {}
    for name, number in {
        "split": find(page, "split", 1),
        "copy": find(page, "copy", 1, "host"),
        "wait": find(page, "wait", 1, "host"),
        "predicted": find(page, "split", 1, "predicted"),
    }.items():
        page.run(f"vksched.select({number}, 'close'); vksched.view.selected = -1; vksched.paint()")
        page.settle()
        x, y = place(page, number)
        places = [(x + 200 + dx, y + dy) for dx in range(8) for dy in range(-3, 5)]
        grey = [0.3 * r + 0.6 * g + 0.1 * b for r, g, b in colours_at(page, *places)]
        least, most = min(grey), max(grey)
        patterns[name] = tuple(2 * each > least + most for each in grey) if most > least + 8 else ()
    assert patterns["split"] == ()  # plain
    for one, other in itertools.combinations(patterns, 2):
        assert patterns[one] != patterns[other], (one, other)


def test_texts_are_large_enough(page: Page) -> None:
    page.click(*place(page, find(page, "split", 1)))
    sizes = page.run(
        """[...document.querySelectorAll("body *")]
        .filter((e) => e.innerText && e.checkVisibility())
        .map((e) => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert min(sizes) >= 12
    fonts = re.findall(r"font = `(?:600 )?(\d+)px", as_page(sample_timeline(1)))
    assert fonts and min(map(int, fonts)) >= 12
    assert page.run("document.documentElement.scrollWidth") <= 1280
    assert page.run("document.documentElement.scrollHeight") <= 800


# -- other timelines -------------------------------------------------------------------------------


def test_a_plan_that_has_not_run(browser: Chromium, tmp_path: Path) -> None:
    plan_timeline(sample_plan(), LANES).save(tmp_path / "plan.html")
    page = browser.open(tmp_path / "plan.html")
    assert "nothing has run" in text_of(page, "summary")
    number = find(page, "split", 2, "predicted")
    page.click(*place(page, number))
    assert "layer6: explained" in text_of(page, "panel")
    assert "measured" not in text_of(page, "panel") + text_of(page, "legend")
    assert page.complaints == []
    page.close()


def test_texts_of_a_graph_are_texts_in_the_page(browser: Chromium, tmp_path: Path) -> None:
    from vksched.viz.timeline.timeline_types import NodeView, PlanView, PredictedSpan, SplitView

    evil = "<img src=x onerror=alert(1)></script><script>document.title='!'</script>"
    view = PlanView(
        "plan",
        evil,
        [NodeView(evil, evil, evil, (evil,), 1e-3, evil)],
        [SplitView(1, (0,))],
        [PredictedSpan("split", 1, 0, 0.0, 1e-3)],
        1e-3,
    )
    plan_timeline(view, LANES).save(tmp_path / "evil.html")
    page = browser.open(tmp_path / "evil.html")
    page.click(*place(page, find(page, "split", 0, "predicted")))
    assert evil in page.run("document.getElementById('panel').textContent")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.title").startswith("plan")
    assert page.complaints == []
    page.close()


def test_a_hundred_thousand_events(browser: Chromium, tmp_path: Path) -> None:
    """All of it is drawn in bounded work, however many events there are: what a frame draws is
    bounded by pixels, not by events.
    """
    path = tmp_path / "many.html"
    events = sample_events(7700)
    assert len(events) > 100_000
    timeline = run_timeline(events, [sample_plan()], LANES)
    path.write_text(as_page(timeline), "utf-8")
    assert path.stat().st_size < 160 * len(timeline.spans)
    began = time.monotonic()
    page = browser.open(path)
    page.settle()
    opened_s = time.monotonic() - began
    assert page.run("vksched.span.start.length") == len(timeline.spans) > 200_000
    drawn: list[int] = []
    began = time.monotonic()
    for _ in range(40):
        page.run("vksched.zoom(1 / 1.5); vksched.paint()")
        drawn.append(page.run("vksched.view.drawn"))
    frames_s = time.monotonic() - began
    tracks = page.run("vksched.tracks.length")
    assert max(drawn) <= tracks * 1100
    # Bounds to notice quadratic work: a hundred times what it takes on an idle machine.
    assert opened_s < 60 and frames_s < 60
    page.press("0")
    page.press("/")
    page.type("softmax")
    assert int(text_of(page, "found").split()[0]) > 50_000
    page.press("Escape")
    number = find(page, "split", 2, "work", 7000)
    page.run(f"vksched.select({number}, 'close')")
    page.settle()
    page.click(*place(page, number))
    assert "layer6: explained" in text_of(page, "panel")
    assert page.complaints == []
    page.close()


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_place(browser: Chromium, tmp_path: Path, row: str) -> None:
    """What has no height would leave all below it, and all of the picture, without a place."""
    rows = {row, "predicted" if row in PREDICTED_ROWS else "work"}
    spans = [Span(1, each, "split", each, 0.25, 0.75) for each in ROWS if each in rows]
    Timeline("rows", "", LANES, spans).save(tmp_path / "rows.html")
    page = browser.open(tmp_path / "rows.html")
    page.settle()
    assert page.run("vksched.view.drawn") == len(spans)
    for number, span in enumerate(spans):
        page.move(*place(page, number))
        assert text_of(page, "tip").startswith(span.name)
    assert page.complaints == []
    page.close()


def test_copies_next_to_work_are_drawn_and_reported(browser: Chromium, tmp_path: Path) -> None:
    vs.timeline(copying_tape()).save(tmp_path / "copies.html")
    page = browser.open(tmp_path / "copies.html")
    page.settle()
    assert page.run("vksched.view.drawn") > 20
    assert "copy" in text_of(page, "legend")
    number = find(page, "transfer_queue", 2, "transfer_queue")
    page.move(*place(page, number))
    tip = text_of(page, "tip")
    for part in (
        "copies in of split 2",
        "transfer_queue on gpu:1",
        "measured",
        "210 ms",
        "2.0 MiB",
    ):
        assert part in tip
    assert page.complaints == []
    page.close()


def test_an_empty_page(browser: Chromium, tmp_path: Path) -> None:
    run_timeline([], [], LANES).save(tmp_path / "empty.html")
    page = browser.open(tmp_path / "empty.html")
    for key in ("c", "n", "f", "Enter", "+", "a"):
        page.press(key)
    answer: Any = page.complaints
    assert answer == [] and selected(page) == -1
    page.close()


def test_as_many_splits_as_no_call_takes_arguments(browser: Chromium, tmp_path: Path) -> None:
    count, path = 200_000, tmp_path / "splits.html"
    spans = [
        Span(1, "work", "split", "s", i * 1e-3, i * 1e-3 + 5e-4, 0, -1, 0) for i in range(count)
    ]
    used = Counter(1, "memory in use", [s.start_s for s in spans], [float(i) for i in range(count)])
    path.write_text(as_page(Timeline("many", "", LANES, spans, counters=(used,))), "utf-8")
    page = browser.open(path)
    page.settle()
    assert page.run("vksched.span.start.length") == count
    assert page.complaints == []
    page.close()
