"""Predictions for cards: the arithmetic of the model, and the page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_folders import add_benchmarks

from vksched.importers import load_gguf


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    add_benchmarks(monkeypatch)
    import card_counts
    import card_model

    return SimpleNamespace(counts=card_counts, model=card_model)


def step(**changes: Any) -> dict[str, Any]:
    return {
        "card": "NVIDIA H100",
        "tokens": 1,
        "barriers": 100,
        "flops": {"gemv": 2e9},
        "weight_bytes": 2.6e9,
        "scratch_bytes": 0.0,
        **changes,
    }


def test_a_time_is_the_longer_of_arithmetic_and_bytes_and_what_waits(
    bench: SimpleNamespace,
) -> None:
    predicted = bench.model.predicted_s
    host_s, level_s = 120e-6, 11e-6
    assert predicted(step()) == pytest.approx(1e-3 + 100 * level_s + host_s)
    assert predicted(step(), 0.5) == pytest.approx(1e-3 + 50 * level_s + host_s)
    flops = {"float32": 3.1e12, "coopmat": 1.12e12}
    prompt = step(tokens=512, flops=flops, scratch_bytes=2.6e9)
    assert predicted(prompt) == pytest.approx(0.1 + 0.01 + 1e-3 + 100 * 2.5e-6 + host_s)
    without_units = step(card="Radeon RX 6600", tokens=512, flops={"coopmat": 6.3e12})
    assert predicted(without_units) > 1.0


def test_the_token_of_0_1_0_on_an_h100_is_what_was_measured(bench: SimpleNamespace) -> None:
    """Q4_K weights of 1.035 G parameters, 269 barriers: 3.32 ms in docs/performance."""
    old = step(barriers=269, weight_bytes=1.035e9 * 0.5625)
    assert bench.model.predicted_s(old) == pytest.approx(3.32e-3, rel=0.05)


def test_the_page_says_that_all_is_predicted_and_has_every_card(bench: SimpleNamespace) -> None:
    text = bench.model.predictions_as_markdown(bench.counts.DATA)
    assert text.count("PREDICTION") == 2
    for card in bench.counts.CARDS:
        assert text.count(f"{card}, 1.1B") == text.count(f"{card}, 8B") == 2
        assert text.count(f"| {card} | ") == 1


def test_all_weights_are_counted_before_and_after(bench: SimpleNamespace) -> None:
    """An op that the counts do not know would make its step faster."""
    stored = bench.model.read_counts(bench.counts.DATA)
    for before, after in zip(stored["before"], stored["after"], strict=True):
        assert after["weight_bytes"] == before["weight_bytes"]
        assert sum(after["flops"].values()) == pytest.approx(sum(before["flops"].values()), 0.01)


def test_data_of_another_format_is_refused(tmp_path: Path, bench: SimpleNamespace) -> None:
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps({"format": 0, "before": [], "after": []}))
    with pytest.raises(ValueError, match="expected format 1 in .*, got 0"):
        bench.model.read_counts(path)


def test_the_stored_counts_are_those_of_the_plans(bench: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    bench.counts.write_outline(path, bench.counts.SHAPES["1.1B"])
    model, stored = load_gguf(path).meta(), bench.model.read_counts(bench.counts.DATA)["after"]
    for card in ("NVIDIA H100", "Radeon RX 6600"):
        for tokens in bench.counts.TOKENS:
            now = asdict(bench.counts.count("1.1B", model, card, tokens, "after"))
            assert now in stored, "run: python benchmarks/overheads/card_counts.py"
            if tokens == 1:  # Q4_K: 144 bytes for 256 weights
                read = now["flops"]["gemv"] / 2 * 144 / 256
                assert read == pytest.approx(now["weight_bytes"], rel=1e-3)
