"""Drawings of plans: nothing lies on anything else, and transfers bear their bytes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from graphs import NAMED, A, B, Named, chain, diamond, make_plan, mlp, picky, random_plan, source

import vksched as vs
from vksched.plan.drawing.layout import CHAR, Layout, lay_out
from vksched.plan.drawing.render import CROSSING, FALLEN, draw_plan
from vksched.plan.drawing.scene import MANY, Box, make_scene

SVG = "{http://www.w3.org/2000/svg}"
Rect = tuple[float, float, float, float]


def layout_of(plan: vs.Plan) -> Layout:
    return lay_out(make_scene(plan), {})


def rect(box: Box) -> Rect:
    return box.x, box.y, box.x + box.width, box.y + box.height


def apart(one: Rect, two: Rect) -> bool:
    return one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]


def assert_clear(layout: Layout) -> None:
    """No line, label, frame or box lies on a box; no two nets run along each other."""
    scene = layout.scene
    boxes = [rect(b) for b in scene.boxes]
    for box in scene.boxes:
        assert max(map(len, box.lines)) * CHAR <= box.width
    for one, two in combinations(boxes, 2):
        assert apart(one, two)
    frames = [(x, y, x + w, y + h) for _, x, y, w, h in layout.frames]
    for one, two in combinations(frames, 2):
        assert apart(one, two)
    labels = []
    for line in layout.lines:
        for (x0, y0), (x1, y1) in zip(line.points, line.points[1:], strict=False):
            assert x0 == x1 or y0 == y1
            segment = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
            for box in boxes:
                inside = (box[0] + 0.5, box[1] + 0.5, box[2] - 0.5, box[3] - 0.5)
                assert apart(segment, inside), line.wire.tip
        if line.at is not None:
            x, y = line.at
            labels.append((x, y - 6, x + len(line.wire.label) * CHAR, y + 5))
    for label in labels:
        assert all(apart(label, other) for other in (*boxes, *frames))
    assert all(apart(one, two) for one, two in combinations(labels, 2))
    assert_nets_apart(layout)


def assert_nets_apart(layout: Layout) -> None:
    """Level pieces of different nets never share a height where they meet, nor do upright ones."""
    pieces: dict[tuple[bool, float], list[tuple[float, float, tuple[int, ...], int]]] = {}
    for line in layout.lines:
        for (x0, y0), (x1, y1) in zip(line.points, line.points[1:], strict=False):
            level = y0 == y1
            at, start, end = (y0, *sorted((x0, x1))) if level else (x0, *sorted((y0, y1)))
            net = line.wire.net
            pieces.setdefault((level, round(at, 1)), []).append((start, end, net, net[0]))
    for (level, at), found in pieces.items():
        for one, two in combinations(found, 2):
            together = min(one[1], two[1]) - max(one[0], two[0])
            # nets of one box leave it together
            same = one[2] == two[2] or (not level and one[3] == two[3])
            assert together <= 0 or same, (level, at, one, two)


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_named_shapes_are_drawn_clearly(shape: Named) -> None:
    assert_clear(layout_of(make_plan(*shape.build())))


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_are_drawn_clearly(seed: int) -> None:
    plan = random_plan(seed, 10 + 25 * seed, 1 + seed % 4)
    layout = layout_of(plan)
    nodes = sum(len(s.nodes) for s in plan.splits)
    assert layout.scene.collapsed == (nodes > MANY)
    assert_clear(layout)


def test_splits_stand_below_what_they_wait_for_and_next_to_what_they_do_not() -> None:
    layout = layout_of(make_plan(*diamond(A, A, B, A)))
    frames = {f.title.partition(":")[0]: f for f in layout.scene.frames}
    assert frames["split 1"].first > frames["split 0"].last
    assert frames["split 2"].first == frames["split 1"].first  # the branches, side by side
    assert frames["split 3"].first > frames["split 2"].last


def test_everything_of_a_diamond_is_in_the_picture() -> None:
    text = draw_plan(make_plan(*diamond(A, A, B, A)))
    root = ET.fromstring(text)
    texts = [t.text or "" for t in root.iter(f"{SVG}text")]
    for wanted in ("root", "exp float32[8,64]", "left", "right", "join", "null:0", "null:1", "x"):
        assert texts.count(wanted) == 1, wanted
    assert any("4 nodes in 4 splits, 2 transfers (4.0 KiB)" in t for t in texts)
    assert texts.count("2.0 KiB") == 4  # in, out, and two transfers
    thick = [p for p in root.iter(f"{SVG}polyline") if p.get("stroke") == CROSSING]
    assert len(thick) == 2 and all(p.get("stroke-width") == "3" for p in thick)
    tips = [t.text or "" for t in root.iter(f"{SVG}title")]
    assert "right: mul -> float32[8,64]\nreads root, constant_1\noverride: right on null:1" in tips


def test_value_that_crosses_once_has_one_label() -> None:
    layout = layout_of(make_plan(*NAMED["fan-out to one device"].build()))
    transfer = [line for line in layout.lines if line.wire.kind == "crosses"]
    assert len(transfer) == 6 and [line.at is not None for line in transfer].count(True) == 1


def test_part_that_crosses_bears_its_own_bytes() -> None:
    a = vs.exp(source(), name="a")
    plan = make_plan(vs.neg(a[2:4], name="y"), {"a": A, "y": B})
    labels = [w.label for w in make_scene(plan).wires if w.kind == "crosses"]
    assert labels == ["512 B"]


def test_what_only_numpy_can_run_is_marked() -> None:
    pick = vs.gather(mlp(1)[0][0], np.arange(4, dtype=np.int32), name="pick")
    text = draw_plan(make_plan(pick, topology=picky(False)))
    assert "numpy runs it, as no device can" in text
    marked = [r for r in ET.fromstring(text).iter(f"{SVG}rect") if r.get("stroke") == FALLEN]
    assert len(marked) == 2  # the box and the legend
    assert "as no device can" not in draw_plan(make_plan(pick, topology=picky(True)))


def test_large_graph_has_a_box_for_each_split() -> None:
    plan = make_plan(*mlp(60, half=30))
    scene = make_scene(plan)
    assert scene.collapsed and len(scene.boxes) == len(plan.splits) + 2
    assert ("90 nodes", "mul x30", "add x30", "relu x30") in [b.lines for b in scene.boxes]
    assert [w.label for w in scene.wires if w.kind == "crosses"] == ["2.0 KiB"]
    assert len(draw_plan(plan)) < 20_000


def test_long_and_odd_names_are_cut_and_escaped() -> None:
    long, odd = "encoder." * 12 + "last", 'a<b & "c">\x00\n'
    x = vs.input(odd, (4,))
    plan = make_plan(vs.exp(vs.neg(x, name=long), name="]]>"))
    root = ET.fromstring(draw_plan(plan))
    texts = [t.text or "" for t in root.iter(f"{SVG}text")]
    assert any(t.startswith("…") and t.endswith("encoder.last") for t in texts)
    assert any(t.startswith('a<b & "c">') for t in texts) and "]]>" in texts
    assert long in "".join(t.text or "" for t in root.iter(f"{SVG}title"))
    assert_clear(layout_of(plan))


def test_outputs_that_are_leaves_are_drawn() -> None:
    x, w = source(), vs.weight(np.ones(4, np.float32), name="w")
    plan = make_plan({"same": x, "y": vs.neg(x), "w": w})
    assert_clear(layout_of(plan))
    root = ET.fromstring(draw_plan(plan))
    assert {"same", "y"} <= {t.text for t in root.iter(f"{SVG}text")}
    ET.fromstring(draw_plan(make_plan(x)))  # nothing runs at all
    ET.fromstring(draw_plan(make_plan(w)))


def test_same_plan_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.SVG"):
        random_plan(5, 60, 3).draw(tmp_path / name)
    first = (tmp_path / "one.svg").read_bytes()
    assert first == (tmp_path / "two.SVG").read_bytes()
    assert first.startswith(b"<?xml")


def test_wrong_places_are_clear_errors(tmp_path: Path) -> None:
    plan = make_plan(*chain([A, B]))
    with pytest.raises(
        vs.PlanError, match=r"\[draw\] expected a name that ends in \.svg, got .*png"
    ):
        plan.draw(tmp_path / "plan.png")
    with pytest.raises(vs.PlanError, match=r"\[draw\] cannot write .*: No such file"):
        plan.draw(str(tmp_path / "none" / "plan.svg"))
    assert list(tmp_path.iterdir()) == []
