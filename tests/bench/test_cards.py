"""The page of cards that are not at hand: kept results, and a chapter for each card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_folders import add_benchmarks
from click.testing import CliRunner
from click.testing import Result as Called
from test_bench import SMALL_MODELS, SPEC, figure, sample

from vksched.bench.baselines.workloads import COPY, LANGUAGE, Spec, in_precision, work_of
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.peak_throughput import PeakRates
from vksched.bench.report import Report
from vksched.bench.rounds import Result
from vksched.bench.suites import specs_of

TOKEN = {"phase": "token", "tokens": 128, "type": "Q8_0", "flops": 4e6, "bytes": 2e6}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Calls benchmarks/report/report.py with docs of its own."""
    add_benchmarks(monkeypatch)
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
    report.devices[0].baselines["torch"] = "2"
    report.facts.append(ExtraMetric("vulkan:0", "net: compile and first run", 1.5, "s"))
    return report


def test_results_of_a_card_make_a_page_of_their_own(run: Any, tmp_path: Path) -> None:
    found: Called = run("--card", "h100", stored(tmp_path / "a.json", of_card()))
    assert found.exit_code == 0, found.output
    text = (tmp_path / "performance" / "gpu-results.md").read_text()
    assert "## A card\n" in text and "vksched 0, driver driver 1, next to" in text
    assert "| product in mixed | 1 ms | 0 % | 2 | 0.12 |  | arithmetic |  |  | 2.00 |" in text
    assert "| copy | 100 us | 0 % |  | 10.5 |  | bus |  |  | 2.00 |" in text
    assert "| model | time | spread | torch: time, ratio | compile, first run |" in text
    assert "| net | 200 ms | 0 % | 100 ms 0.50 | 1.5 s |" in text
    assert "| random 27M Q8_0 token at 128 | 1000 | 500 | 2.00 | 1 ms | 0 % | 2 |" in text
    assert "| a run of nothing | 200 us | 100 us | 2.00 | note |" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))
    assert not (tmp_path / "performance" / "data" / "results.json").exists()


def test_later_results_of_a_card_win_and_others_stay(run: Any, tmp_path: Path) -> None:
    run("--card", "h100", stored(tmp_path / "a.json", of_card()))
    saved = tmp_path / "performance" / "data" / "cards" / "h100.json"
    data = Report.from_dict(json.loads(saved.read_text()))
    read = next(result.spec for result in data.results if result.spec.kind == LANGUAGE)
    assert work_of(read) == (4e6, 2e6)
    later = sample()
    later.results = [Result("vulkan:0", SPEC, [figure("vksched", 0.001)])]
    run("--card", "h100", stored(tmp_path / "b.json", later))
    other = sample()
    other.devices = [replace(other.devices[0], label="Another card")]
    run("--card", "other-1", stored(tmp_path / "c.json", other))
    text = (tmp_path / "performance" / "gpu-results.md").read_text()
    assert "| product | 1 ms |" in text and "| product in mixed | 1 ms |" in text
    assert text.index("## A card") < text.index("## Another card")


def products(*ratios: float) -> Report:
    """Results of products of 1,024, 2,048, ... beside PyTorch's, on a card."""
    report = sample()
    device = replace(report.devices[0], baselines={"torch": "2"}, missing={})
    pairs = [[figure("vksched", 1e-3), figure("torch", x * 1e-3)] for x in ratios]
    specs = [spec for spec in specs_of("ops") if spec.name in ("matmul 1024", "matmul 2048")]
    results = [Result("vulkan:0", spec, pair) for spec, pair in zip(specs, pairs, strict=True)]
    return Report("ops", [device], results, "0", [])


@pytest.mark.parametrize(
    ("ratios", "row"),
    [
        ((0.9, 0.8), "1,024, 2,048 | 0.90, 0.80 | torch | 0.8 | yes |"),
        ((1.5, 0.05), "1,024, 2,048 | 1.50, 0.05 | torch | 0.8 | 1 of 2 |"),
    ],
)
def test_a_chapter_begins_with_what_reaches_its_goal(
    run: Any, tmp_path: Path, ratios: tuple[float, float], row: str
) -> None:
    notes = tmp_path / "performance" / "data" / "cards" / "h100.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("- what people wrote\n")
    found = run("--card", "h100", stored(tmp_path / "a.json", products(*ratios)))
    assert found.exit_code == 0, found.output
    text = (tmp_path / "performance" / "gpu-results.md").read_text()
    assert f"| float32 matmul: {row}\n\n- what people wrote\n\n### Calls" in text
    assert "| cases | torch | least ratio |" in text  # no column for the fastest of one peer
    missing = text.partition("Not measured: ")[2].partition("\n\n")[0].replace("\n", " ")
    assert "matmul 4096," in missing and "matmul 1024," not in missing
    assert "tiny ops" not in missing  # of a suite that was not measured at all


def test_cases_with_a_precision_have_a_row_of_their_own_next_to_the_others(run: Any) -> None:
    import page
    from results import merge

    report = products(1.0, 1.0)
    mixed = in_precision(report.results[0].spec, "mixed")
    assert mixed is not None
    report.results.append(
        Result("vulkan:0", mixed, [figure("vksched", 1e-3), figure("torch", 1e-2)])
    )
    others = [Spec(f"{x} token", LANGUAGE, "token", TOKEN) for x in ("F32", "F16")]
    report.results += [Result("vulkan:0", spec, []) for spec in others]
    merged = merge([report])
    assert [r.spec for r in merged.results[-2:]] == others  # of no suite here: as measured
    text = page.calls_of(merged, report.devices[0])
    assert "| matmul square | 1.00 | 1.00 |" in text
    assert "| matmul square in mixed | 10.00 | 10.00 |" in text
    cases = [line.split(" | ")[0] for line in text if line.startswith("| matmul ")]
    assert cases[-3:] == ["| matmul 1024", "| matmul 1024 in mixed", "| matmul 2048"]


@pytest.mark.parametrize(("type", "bound"), [("discrete", "arithmetic"), ("cpu", "dispatch")])
def test_what_a_dispatch_costs_is_less_on_cards(run: Any, type: str, bound: str) -> None:
    import page

    report = products(1.0, 1.0)
    device = replace(report.devices[0], type=type, ceiling=PeakRates(1e15, 1e13, "", ""))
    result = replace(report.results[0], figures=[figure("vksched", 5e-5)])
    assert page.bound_of(device, result) == bound


def test_the_page_at_hand_points_to_cards(run: Any, tmp_path: Path) -> None:
    run("--card", "h100", stored(tmp_path / "a.json", of_card()))
    (tmp_path / "performance" / "gpu-results.md").unlink()
    at_hand = sample()
    at_hand.devices[0].type = "cpu"
    assert run(stored(tmp_path / "own.json", at_hand)).exit_code == 0
    import report

    text = report.performance_tables(tmp_path)
    assert "No GPU was present. [GPU results](gpu-results.md)" in text
    assert "product in mixed" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--card", "../x", "a"), "expected a card's name"), (("--card", "h100"), "expected files")],
)
def test_what_is_no_card_is_refused(run: Any, words: tuple[str, ...], message: str) -> None:
    refused = run(*words)
    assert refused.exit_code == 1 and message in refused.output
