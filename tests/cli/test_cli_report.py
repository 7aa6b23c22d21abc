"""`vksched run --report`: what each device did, as tables, JSON and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from test_cli import call

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[?] y) { a = Neg(x)\n u = Unique(a)\n y = Exp(u) }"""


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "cut.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    return call(capsys, "run", *args, "--random-inputs", "--free-dim", "n=40", "--devices", "cpu")


def test_a_report_is_printed_of_the_runs_after_the_first(
    capsys: pytest.CaptureFixture[str], cut: str
) -> None:
    code, out, err = run(capsys, cut, "--repeat", "4", "--report")
    assert code == 0, err
    assert "medians of 3 runs" in out and "each run is 2 graphs, one after the other" in out
    lines = [line.split() for line in out.splitlines() if line]
    assert ["predicted", "measured", "ratio", "known"] in lines
    assert ["busy", "copying", "waiting", "idle"] in lines
    assert any(line[0] == "host" and line[-1] == "%" for line in lines)
    assert any(line[:2] == ["onnx.Unique", "-"] for line in lines)


@pytest.mark.parametrize("repeat", ["1", "3"])
def test_a_report_as_json_adds_up(
    capsys: pytest.CaptureFixture[str], cut: str, repeat: str
) -> None:
    code, out, err = run(capsys, cut, "--repeat", repeat, "--json", "--report")
    assert code == 0, err
    data = json.loads(out)
    report = data["report"]
    assert report["runs"] == max(1, int(repeat) - 1) and data["runs"] == max(2, int(repeat))
    for each in report["times"]:
        parts = [each[key] for key in ("busy_s", "copying_s", "waiting_s", "idle_s")]
        assert sum(parts) == pytest.approx(report["run"]["measured_s"]) and min(parts) >= 0
    assert [each["device"] for each in report["times"]] == ["cpu", "host"]


def test_a_report_is_written_as_json_or_as_a_picture(
    capsys: pytest.CaptureFixture[str], cut: str, tmp_path: Path
) -> None:
    code, out, _ = run(capsys, cut, "--report", str(tmp_path / "r.json"))
    assert code == 0 and f"wrote {tmp_path / 'r.json'}" in out
    data = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert (data["runs"], data["graphs"]) == (1, 2)
    code, out, _ = run(capsys, cut, "--report", str(tmp_path / "r.svg"))
    assert code == 0 and f"wrote {tmp_path / 'r.svg'}" in out
    assert ET.parse(tmp_path / "r.svg").getroot().tag.endswith("svg")


def test_a_report_goes_nowhere_else(
    capsys: pytest.CaptureFixture[str], cut: str, tmp_path: Path
) -> None:
    code, _, err = call(capsys, "run", "--report", cut)
    assert code == 2 and "try --report as the last word" in err
    code, _, err = run(capsys, cut, "--report", str(tmp_path / "none" / "r.svg"))
    assert code == 1 and "expected a folder for" in err


def test_without_the_option_there_is_no_report(
    capsys: pytest.CaptureFixture[str], cut: str
) -> None:
    code, out, _ = run(capsys, cut, "--json")
    assert code == 0 and "report" not in json.loads(out)
