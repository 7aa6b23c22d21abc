"""The picture of docs/guides/monitoring.md: made of a real run, and in need of nothing from
elsewhere.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import top_screen
from monitored import WORK, device_now, process_now

from vksched.monitor.top.render import Window


def test_a_picture_is_built_while_programs_run(
    runtime_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "top.svg"
    monkeypatch.setattr(top_screen, "STREAM", WORK)
    words = ["--devices", "cpu", "--seconds", "0.5", "--output", str(target)]
    monkeypatch.setattr(top_screen, "MORE", ["600"])
    top_screen.main(words)
    text = target.read_text("utf-8").replace("&#160;", " ")
    assert "minilm_stream.py cpu" in text and "runs/s" in text


def test_a_program_that_ends_is_reported(runtime_home: Path, tmp_path: Path) -> None:
    words = ["--devices", "", "--run", "-c pass", "--output", str(tmp_path / "top.svg")]
    with pytest.raises(SystemExit, match="expected programs that run on, got one that ended"):
        top_screen.main(words)


def test_the_picture_stands_alone() -> None:
    svg = top_screen.draw([process_now(1, device_now(), device_now("cpu"))], Window(80, 24))
    ElementTree.fromstring(svg)
    assert set(re.findall(r"https?://[^\"'\s)]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert "A&#160;Card" in svg
