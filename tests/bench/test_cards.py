"""The page of cards that are not at hand: kept results, and a chapter for each card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Called
from test_bench import SMALL_MODELS, SPEC, figure, sample

from vksched.bench.facts import Fact
from vksched.bench.peers.specs import COPY, LANGUAGE, Spec, in_precision, work_of
from vksched.bench.report import Report
from vksched.bench.rounds import Result

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
TOKEN = {"phase": "token", "tokens": 128, "type": "Q8_0", "flops": 4e6, "bytes": 2e6}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Calls benchmarks/report.py with docs of its own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    pytest.importorskip("matplotlib")
    import report

    return lambda *words: CliRunner().invoke(report.main, [*words, "--docs", str(tmp_path)])


def stored(path: Path, report: Report) -> str:
    path.write_text(json.dumps(report.as_dict()))
    return str(path)


def of_card() -> Report:
    """Results of several suites of one card."""
    report = sample()
    mixed = in_precision(SPEC, "mixed")
    assert mixed is not None
    copy = Spec("copy", COPY, "bus", {"bytes": 1 << 20, "direction": "in", "hardware": True})
    read = Spec("random 27M Q8_0 token at 128", LANGUAGE, "token", TOKEN)
    model = Spec("net", "model", "models", SMALL_MODELS[2].params)
    for spec, ours_s, torch_s in ((mixed, 1e-3, 2e-3), (copy, 1e-4, 2e-4), (model, 0.2, 0.1)):
        pair = [figure("vksched", ours_s), figure("torch", torch_s)]
        report.results.append(Result("vulkan:0", spec, pair))
    report.results.append(
        Result("vulkan:0", read, [figure("vksched", 1e-3), figure("llama.cpp", 2e-3)])
    )
    report.devices[0].peers["torch"] = "2"
    report.facts.append(Fact("vulkan:0", "net: compile and first run", 1.5, "s"))
    return report


def test_results_of_a_card_make_a_page_of_their_own(run: Any, tmp_path: Path) -> None:
    found: Called = run("--card", "h100", stored(tmp_path / "a.json", of_card()))
    assert found.exit_code == 0, found.output
    text = (tmp_path / "performance" / "cards.md").read_text()
    assert "## A card\n\nvksched 0. driver 1.\n" in text
    assert "| product in mixed | 1 ms | 0 % | 2 | 0.12 |  | arithmetic |  |  | 2.00 |" in text
    assert "| copy | 100 us | 0 % | 0 | 10.5 |  | bus |  |  | 2.00 |" in text
    assert "| net | vulkan:0: A card | 200 ms |" in text and "| 100 ms 0.50 |" in text
    assert "| random 27M Q8_0 token at 128 | 1000 | 500 | 2.00 | 1 ms | 0 % | 2 |" in text
    assert "| a run of nothing | 200 us | 100 us | 2.00 | note |" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))
    assert not (tmp_path / "performance.md").exists()


def test_later_results_of_a_card_win_and_others_stay(run: Any, tmp_path: Path) -> None:
    run("--card", "h100", stored(tmp_path / "a.json", of_card()))
    kept = tmp_path / "performance" / "cards" / "h100.json"
    data = Report.from_dict(json.loads(kept.read_text()))
    read = next(result.spec for result in data.results if result.spec.kind == LANGUAGE)
    assert work_of(read) == (4e6, 2e6)
    later = sample()
    later.results = [Result("vulkan:0", SPEC, [figure("vksched", 0.001)])]
    run("--card", "h100", stored(tmp_path / "b.json", later))
    other = sample()
    other.devices = [replace(other.devices[0], label="Another card")]
    run("--card", "other-1", stored(tmp_path / "c.json", other))
    text = (tmp_path / "performance" / "cards.md").read_text()
    assert "| product | 1 ms |" in text and "| product in mixed | 1 ms |" in text
    assert text.index("## A card") < text.index("## Another card")


def test_the_page_at_hand_points_to_cards(run: Any, tmp_path: Path) -> None:
    run("--card", "h100", stored(tmp_path / "a.json", of_card()))
    (tmp_path / "performance" / "cards.md").unlink()
    at_hand = sample()
    at_hand.devices[0].type = "cpu"
    assert run(stored(tmp_path / "own.json", at_hand)).exit_code == 0
    text = (tmp_path / "performance.md").read_text()
    assert "- [Cards that are not at hand](performance/cards.md)" in text
    assert "[cards](performance/cards.md) has others" in text
    assert "product in mixed" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--card", "../x", "a"), "expected a card's name"), (("--card", "h100"), "expected files")],
)
def test_what_is_no_card_is_refused(run: Any, words: tuple[str, ...], message: str) -> None:
    refused = run(*words)
    assert refused.exit_code == 1 and message in refused.output
