"""`vksched perplexity`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from test_chat import build_model
from test_cli import call
from test_cli_run import data_of
from test_perplexity import WORDS

import vksched as vs
from vksched.generation.perplexity import perplexity

ON_CPU = ("--devices", "cpu")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A model and a text."""
    build_model(tmp_path)
    (tmp_path / "text.txt").write_text(WORDS * 2)
    return str(tmp_path / "tiny.gguf"), str(tmp_path / "text.txt")


def test_the_result_is_that_of_the_function(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str]
) -> None:
    model, text = files
    options = ("--precision", "bfloat16", "--cache-type", "q8_0", "-c", "30", "--max-tokens", "70")
    data = data_of(capsys, "perplexity", model, "--text", text, *options, *ON_CPU)
    with vs.Scheduler(["cpu"]) as sched:
        how = {"precision": "bfloat16", "cache_type": "q8_0", "ctx": 30, "max_tokens": 70}
        wanted = perplexity(sched, vs.load(model), WORDS * 2, **how)  # type: ignore[arg-type]
    assert data.pop("model") == "tiny" and data.pop("notes") == []
    assert data.pop("perplexity_change") == wanted.perplexity_change
    assert data == {k: v for k, v in asdict(wanted).items() if k != "notes"}


def test_the_default_is_the_mode_of_gpus(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str]
) -> None:
    model, text = files
    code, out, err = call(capsys, "perplexity", model, "--text", text, *ON_CPU)
    assert (code, err) == (0, "")
    title, values, divergence, top = out.splitlines()
    assert title == "tiny: 141 tokens, mixed, KV cache in f16, next to float32"
    assert values.startswith("perplexity:    ") and values.endswith(" %)")
    assert divergence.startswith("KL divergence: mean ") and ", max " in divergence
    assert top.startswith("equal top-1:   ") and top.endswith(" %")


def test_errors_are_lines(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], tmp_path: Path
) -> None:
    model, text = files
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    for options, code, part in (
        ((str(tmp_path / "empty.txt"),), 1, "expected a text of at least 2 tokens, got 0"),
        ((str(tmp_path / "bytes.txt"),), 1, "expected a UTF-8 text in "),
        ((str(tmp_path / "none.txt"),), 1, "No such file"),
        ((text, "-c", "65"), 1, "expected a ctx of 2 to 64 tokens, got 65"),
        ((text, "--precision", "auto"), 2, "'auto' is not one of"),
    ):
        status, _, err = call(capsys, "perplexity", model, "--text", *options, *ON_CPU)
        assert status == code and part in err
