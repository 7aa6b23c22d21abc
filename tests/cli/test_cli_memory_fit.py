"""`vksched info model.gguf --topology`: what fits where, and how fast, with or without a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import language
import numpy as np
import pytest
from gguf_models import Tiny, write
from language.convert import draft
from test_cli import call
from test_cli_run import data_of
from test_devices import Show, plain_environment, show

from vksched.importers.gguf.read.tensors import GgufTensor

__all__ = ["plain_environment", "show"]  # fixtures

TINY = Tiny(layers=4, vocabulary=261)
MIB = 1 << 20
LIMITS = {"storage_buffers": 8}


@pytest.fixture
def model(tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of 9.3 MiB whose weights nobody may read, on a computer without drivers."""
    write(TINY, tmp_path / "tiny.gguf", np.random.default_rng(0))
    show(problem="nobody may ask the drivers")
    monkeypatch.setattr(GgufTensor, "to_numpy", lambda _: pytest.fail("a weight is read"))
    return str(tmp_path / "tiny.gguf")


def topology(folder: Path, *cards: dict[str, Any]) -> str:
    cpu = {"name": "cpu", "kind": "cpu", "flops_per_s": 1e9, "bytes_per_s": 1e9}
    devices = [
        {"name": f"card{i}", "limits": LIMITS, "bytes_per_s": 2e10, "flops_per_s": 1e12, **card}
        for i, card in enumerate(cards)
    ]
    path = folder / "machine.json"
    path.write_text(json.dumps({"devices": [*devices, cpu]}))
    return str(path)


def test_what_fits_is_reported_with_and_without_each_card(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    cards = {"memory_bytes": 7 * MIB}, {"memory_bytes": 7 * MIB}
    options = model, "--ctx-size", "64", "--topology", topology(tmp_path, *cards)
    status, out, err = call(capsys, "info", *options)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    start = lines.index("with a context of 64 tokens, kept as f32:")
    assert lines[start + 2] == "device layers weights keys, values work of its memory"
    held = {line.split()[0]: line for line in lines[start + 4 : start + 6]}
    assert held["card0"].startswith("card0 token_embd .. blk.1")
    assert held["card1"].startswith("card1 blk.2 .. output")
    assert all("of 7.0 MiB" in line for line in held.values())
    assert any(line.startswith("without one of card0, card1") for line in lines)
    assert any(line.startswith("cpu alone") and line.endswith("cpu 6") for line in lines)
    data = data_of(capsys, "info", *options)
    assert data["model"] == "tiny" and data["memory_fit"]["ctx"] == 64
    rows = {row["text"]: row for row in data["memory_fit"]["what_if"]}
    whole = rows["as it is"]["fits"]
    assert [held["layers"] for held in whole["devices"]] == [3, 3]
    for device in whole["devices"]:
        parts = (device[f"{part}_bytes"] for part in ("weight", "cache", "work"))
        assert sum(parts) == device["total_bytes"] <= device["capacity_bytes"] == 7 * MIB
    held_bytes = sum(device["weight_bytes"] for device in whole["devices"])
    assert held_bytes == pytest.approx(data["parameter_bytes"], rel=0.01)
    keys_and_values = 4 * 2 * 64 * TINY.kv_heads * TINY.head_size * 4
    assert sum(device["cache_bytes"] for device in whole["devices"]) == keys_and_values
    row_words = {"f16": TINY.head_size / 2, "q8_0": TINY.head_size // 4 + 1}
    for cache_type, words in row_words.items():
        stored = data_of(capsys, "info", *options, "--cache-type", cache_type)["memory_fit"]
        held = sum(device["cache_bytes"] for device in stored["what_if"][0]["fits"]["devices"])
        assert (
            stored["cache_type"] == cache_type and held == keys_and_values * words / TINY.head_size
        )
    for row in rows.values():
        assert row["fits"]["decode_per_s"] == pytest.approx(1 / row["seconds"])
        assert row["fits"]["prefill_per_s"] > row["fits"]["decode_per_s"]
    less = next(row["fits"] for row in rows.values() if row["kind"] == "without")
    assert "cpu" in [held["device"] for held in less["devices"]]
    assert less["decode_per_s"] < whole["decode_per_s"]


def test_experts_on_the_cpu_and_recurrent_states_are_reported(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    path = tmp_path / "golden.gguf"
    path.write_bytes(draft(language.load("qwen3moe")).packed())
    own = "--ctx-size", "64", "--topology", topology(tmp_path, {"memory_bytes": 240 << 10})
    _, out, _ = call(capsys, "info", str(path), *own)
    assert "the experts of 2 layers of card0 are on the CPU" in out and "note: " not in out
    data = data_of(capsys, "info", str(path), *own)
    (held,) = data["memory_fit"]["what_if"][0]["fits"]["devices"]
    assert (held["device"], held["layers"], held["n_cpu_moe"]) == ("card0", 4, 2)
    assert held["weight_bytes"] < data["parameter_bytes"] / 2
    path.write_bytes(draft(language.load("lfm2moe")).packed())
    data = data_of(capsys, "info", str(path), *own)
    devices = data["memory_fit"]["what_if"][0]["fits"]["devices"]
    heads, size = data["hyper"]["kv_heads"], data["hyper"]["key_length"]
    keys_and_values = 2 * 4 * 64 * sum(heads) * size
    states = data["recurrent"]["bytes_per_slot"]
    assert 0 in heads and states > 0
    assert sum(each["cache_bytes"] for each in devices) == keys_and_values + states


def test_a_second_card_that_does_not_help_is_reported(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    cards = {"memory_bytes": 64 * MIB}, {"memory_bytes": 64 * MIB, "bytes_per_s": 1e9}
    _, out, _ = call(capsys, "info", model, "--topology", topology(tmp_path, *cards))
    assert "card1 can be spared" in out and "card0 is worth its place" in out


def test_what_fits_nowhere_is_reported(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    path = topology(tmp_path, {"memory_bytes": 7 * MIB})
    data = json.loads(Path(path).read_text())
    data["devices"][-1]["memory_bytes"] = 1000
    Path(path).write_text(json.dumps(data))
    status, out, _ = call(capsys, "info", model, "--topology", path)
    assert status == 0 and "it does not fit: [plan] expected at most 1000 bytes" in out


def test_options_are_for_one_kind_of_model(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    for options, text in (
        (("--free-dim", "n=2"), "--free-dim is for ONNX models"),
        (("--ctx-size", "0"), "Invalid value"),
        (("--ctx-size", "65"), "expected a cache of 1 to 64 tokens"),
    ):
        status, _, err = call(capsys, "info", model, "--topology", "preset:laptop", *options)
        assert status and text in err
    (tmp_path / "x.onnx").write_bytes(b"")
    status, _, err = call(capsys, "info", str(tmp_path / "x.onnx"), "--ctx-size", "64")
    assert status == 2 and "--ctx-size is for GGUF models" in err
