"""The picture of a schedule."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from drawn_tasks import drawn

from vksched.common.errors import PlanError
from vksched.schedule import Link, Platform, Task, TaskGraph, schedule
from vksched.topology.power import DevicePower

SVG = "{http://www.w3.org/2000/svg}"


def test_each_task_device_and_transfer_is_in_the_picture(tmp_path: Path) -> None:
    tasks, where = drawn(2, 20, 3)
    plan = schedule(tasks, where, "heft")
    plan.draw(tmp_path / "gantt.svg")
    root = ET.parse(tmp_path / "gantt.svg").getroot()
    tips = [tip.text or "" for tip in root.iter(f"{SVG}title")]
    for task in tasks:
        assert sum(tip.startswith(f"{task.name}: ") for tip in tips) == 1
    for t in plan.transfers:
        assert any(tip.startswith(f"{t.producer} to {t.consumer}: ") for tip in tips)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert {*where.devices} <= set(texts)
    assert texts[0] == "20 tasks on 3 devices by heft"


def test_bars_lie_inside_and_do_not_overlap(tmp_path: Path) -> None:
    plan = schedule(*drawn(4, 40, 4), "dls")
    plan.draw(tmp_path / "x.svg")
    root = ET.parse(tmp_path / "x.svg").getroot()
    width = float(root.get("width", "0"))
    lanes: dict[str, list[tuple[float, float]]] = {}
    bars = [r for r in root.iter(f"{SVG}rect") if r.get("stroke", "none") != "none"]
    assert len(bars) == 40
    for bar in bars:
        x, wide = float(bar.get("x", "")), float(bar.get("width", ""))
        assert 0 < x and x + wide <= width
        lanes.setdefault(bar.get("y", ""), []).append((x, x + wide))
    for lane in lanes.values():
        lane.sort()
        assert all(b[0] >= a[1] - 0.02 for a, b in zip(lane, lane[1:], strict=False))


def test_thousands_of_tasks_stay_a_small_file(tmp_path: Path) -> None:
    tasks = TaskGraph([Task(f"t{i}", {"p": 1.0, "q": 1.0}) for i in range(20_000)])
    schedule(tasks, Platform(["p", "q"]), "flb").draw(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size < 1_000_000


def test_names_with_marks_and_no_time_at_all(tmp_path: Path) -> None:
    tasks = TaskGraph([Task("<a&b>", {"p": 0.0}), Task("c", {"q": 0.0})], [("<a&b>", "c", 1)])
    two = Platform(["p", "q"], default_link=Link(bandwidth=float("inf")))
    plan = schedule(tasks, two)
    plan.draw(tmp_path / "x.svg")
    assert "&lt;a&amp;b&gt;" in (tmp_path / "x.svg").read_text("utf-8")
    schedule(TaskGraph([]), two).draw(tmp_path / "y.svg")


def test_the_same_schedule_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        schedule(*drawn(2, 20, 3)).draw(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_other_endings_and_folders_are_refused(tmp_path: Path) -> None:
    plan = schedule(*drawn(2, 5, 2))
    with pytest.raises(PlanError, match=r"ends in \.svg"):
        plan.draw("x.png")
    with pytest.raises(PlanError, match="cannot write"):
        plan.draw(tmp_path / "none" / "x.svg")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("latency", r"[\d.]+ s, [\d.]+ times the lower bound"),
        ("throughput", r"[\d.]+ s, [\d.]+ s a run in a stream, [\d.]+ times the lower bound"),
        ("energy", r"[\d.]+ s, [\d.]+ J, [\d.]+ times the lower bound"),
        ("memory", r"[\d.]+ s, [\d.]+ KiB on the fullest device, [\d.]+ times the lower bound"),
        # no bound is known of a mix
        ("latency=1,energy=2", r"[\d.]+ s, [\d.]+ times the best of each for latency=1,energy=2"),
    ],
)
def test_the_bound_is_that_of_what_the_objective_asks_for(
    tmp_path: Path, objective: str, message: str
) -> None:
    tasks = TaskGraph([Task(f"t{i}", {"p": 1.0, "q": 2.0}, memory_bytes=4096) for i in range(5)])
    where = Platform(["p", "q"], watts={"p": DevicePower(100.0, 10.0), "q": DevicePower(20.0, 1.0)})
    plan = schedule(tasks, where, objective=objective)
    plan.draw(tmp_path / "x.svg")
    root = ET.parse(tmp_path / "x.svg").getroot()
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert re.fullmatch(message, texts[1])
