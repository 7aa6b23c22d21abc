"""The suite of strangers' packages: how results are compared, and what its page says of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import clients_page
import pytest
from clients_page import CLIENTS, Outcome, difference

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ([1.0, 100.0], [1.1, 100.1]),
        ({"a": ["text", 3, None]}, {"a": ["text", 4, None]}),
        ([1e-7], [2e-7]),
        ([math.nan], [math.nan]),
        (2, 2.001),
    ],
)
def test_rounding_is_no_difference(wanted: Any, got: Any) -> None:
    assert difference(wanted, got) == ""


@pytest.mark.parametrize(
    ("wanted", "got", "where"),
    [
        ([1.0, 100.0], [1.0, 101.0], "result[1]"),
        ({"a": ["text"]}, {"a": ["test"]}, "result['a'][0]"),
        ([1, 2], [1, 2, 3], "result: expected [1, 2]"),
        ([[5]], [[7]], "result[0][0]: expected 5, got 7"),
        ({"a": 1}, {"b": 1}, "result"),
        ([1.0], [math.nan], "result[0]"),
        (True, 1, "result"),
        ("1", 1, "result"),
    ],
)
def test_a_difference_is_found(wanted: Any, got: Any, where: str) -> None:
    assert difference(wanted, got).startswith(where)


def test_every_package_has_a_program_and_every_program_a_package() -> None:
    programs = {path.name for path in (ROOT / "tests" / "clients").glob("use_*.py")}
    assert {client.program for client in CLIENTS} == programs and len(CLIENTS) >= 8


def test_programs_know_nothing_of_vksched() -> None:
    for path in (ROOT / "tests" / "clients").glob("use_*.py"):
        assert "vksched" not in path.read_text(), path.name


def test_the_page_gets_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    stored = "| silero-vad 1 | finds speech | the same | 1.0 | 2.0 |"
    old = f"old\n{stored}\n| ddddocr 1 | reads | the same | 1.0 | 1.0 |\n| gone 1 | |"
    page.write_text(f"before\n{clients_page.BEGIN}\n{old}\n{clients_page.END}\nafter\n")
    outcomes = [
        Outcome("magika", "magika==1", first_ratio=2.04, ratio=1.06),
        Outcome("nudenet", "nudenet==2", difference="result: expected 1, got 2", ratio=3.0),
        Outcome("ddddocr", "ddddocr==3", problem="no end within 600 s; more"),
    ]
    clients_page.write(page, outcomes)
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in lines
    assert "| magika 1 | tells the types of six files | the same | 1.1 | 2.0 |" in lines
    assert any("| differ | 3.0 |  |" in text for text in lines)
    assert stored in lines and not any("ddddocr 1" in text or "gone" in text for text in lines)
    assert any("no end within 600 s |  |  |" in text for text in lines)
    assert [o.same for o in outcomes] == [True, False, False]
    assert outcomes[2].as_json()["ratio"] is None


def test_the_page_of_docs_holds_all_packages() -> None:
    text = (ROOT / "docs" / "guides" / "onnxruntime-drop-in.md").read_text()
    table = text.partition(clients_page.BEGIN)[2].partition(clients_page.END)[0]
    for client in CLIENTS:
        assert f"| {client.requirement.replace('==', ' ')} | {client.does} |" in table
