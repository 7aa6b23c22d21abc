"""`--precision` of commands that read models: words, patterns, and what they cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import vulkan_names
from test_cli import call
from test_cli_check import saved
from test_cli_run import data_of

TEXT = """agraph (float[4, 64] x) => (float[4, 8] y) {
  h = MatMul(x, first)
  r = Relu(h)
  y = MatMul(r, second)
}"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    rng = np.random.default_rng(2)
    first = rng.standard_normal((64, 64)).astype(np.float32) / 8
    return saved(tmp_path, TEXT, first=first, second=first[:, :8])


def run(model: str, *more: str) -> tuple[str, ...]:
    return (
        "run",
        model,
        "--devices",
        "cpu",
        "--random-inputs",
        "--compare-with",
        "onnxruntime",
        *more,
    )


def test_what_a_precision_costs_is_reported(capsys: pytest.CaptureFixture[str], model: str) -> None:
    for words, least in ((("mixed",), 1e-5), (("float16",), 1e-4), (("h.*=mixed",), 1e-6)):
        args = [part for word in words for part in ("--precision", word)]
        cost = data_of(capsys, *run(model, *args))["precision_cost"]
        assert cost["output"] == "y" and least < cost["relative"] < 1e-2
    _, text, _ = call(capsys, *run(model, "--precision", "mixed"))
    assert "mixed costs" in text and "y is up to" in text


def test_float32_costs_nothing(capsys: pytest.CaptureFixture[str], model: str) -> None:
    found = data_of(capsys, *run(model, "--precision", "float32"))
    assert "precision_cost" not in found and found["check"][0]["relative"] < 1e-5


def test_a_pattern_takes_what_it_names_out_of_the_rest(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    words = "--precision", "mixed", "--precision", "*=float32"
    cost = data_of(capsys, *run(model, *words))
    assert "precision_cost" not in cost


def test_the_tolerance_follows_the_word(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert call(capsys, *run(model, "--precision", "mixed"))[0] == 0
    assert call(capsys, *run(model, "--precision", "mixed", "--rtol", "1e-6"))[0] == 1


@pytest.mark.parametrize("word", ["half", "h=", "=mixed", "h=half"])
def test_what_is_no_word_is_reported(
    capsys: pytest.CaptureFixture[str], model: str, word: str
) -> None:
    code, _, err = call(capsys, *run(model, "--precision", word))
    assert code == 2 and "--precision expects [PATTERN=]" in err


def test_a_pattern_that_matches_nothing_is_reported(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    code, _, err = call(capsys, *run(model, "--precision", "none.*=mixed"))
    assert code == 1 and "expected a node that matches 'none.*'" in err


def test_a_plan_has_the_precision_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    plan = "plan", model, "--devices", "cpu"
    assert "precision:" not in call(capsys, *plan)[1]
    assert "precision: 2 mixed" in call(capsys, *plan, "--precision", "mixed")[1]
    assert "precision: 1 float16" in call(capsys, *plan, "--precision", "h*=float16")[1]
    config = tmp_path / "config.yaml"
    config.write_text("h.*: {precision: mixed}\n")
    assert "precision: 1 mixed" in call(capsys, *plan, "--config", str(config))[1]
    code, _, err = call(capsys, *plan, "--precision", "none=mixed")
    assert code == 1 and "matches 'none'" in err


def test_calls_of_a_model_are_tuned_with_its_precision(
    capsys: pytest.CaptureFixture[str],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not vulkan_names():
        pytest.skip("no Vulkan device here")
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    tune = "tune", "--devices", vulkan_names()[0], "--time-budget", "0.01", "--json"
    assert call(capsys, *tune, "--precision", "mixed")[0] == 2
    for words, named in (((), False), (("--precision", "mixed"), True)):
        (device,) = data_of(capsys, *tune, *words, model)["devices"]
        keys = [*device["left"], *(found["key"] for found in device["calls"])]
        products = [key for key in keys if key.startswith("matmul")]
        assert products and all(("precision='mixed'" in key) == named for key in products)
