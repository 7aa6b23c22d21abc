"""The scripts that check the server with lm-eval and with llama.cpp's tests."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import likelihoods
import llama_server_shim
import llama_tests
import llama_tests_table
import pytest
from llama_server_shim import Unsupported, translate
from llama_tests_plugin import SharedServers

import vksched as vs
from vksched.importers.gguf.model import LanguageModel

SAMPLES = [
    {"doc_id": 1, "resps": [[["-3.5", "False"]], [["-1.0", "True"]]]},
    {"doc_id": 0, "resps": [[["-2.0", "False"]]]},
]


def test_likelihoods_are_compared_by_question_and_choice() -> None:
    found = likelihoods.likelihoods_of(SAMPLES)
    assert found == [[-2.0], [-3.5, -1.0]]
    assert likelihoods.largest_difference(found, [[-2.0], [-3.25, -1.0]]) == 0.25
    assert likelihoods.largest_difference([[float("nan")]], [[-1.0]]) == float("inf")
    with pytest.raises(ValueError):
        likelihoods.largest_difference(found, [[-2.0], [-3.5]])
    with pytest.raises(ValueError):
        likelihoods.largest_difference([], [])


def test_the_task_has_the_questions(tmp_path: Path) -> None:
    likelihoods._write_task(tmp_path / "run")
    rows = (tmp_path / "run" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(row) for row in rows]
    assert [row["question"] for row in found] == [each[0] for each in likelihoods.QUESTIONS]
    assert all(0 <= row["answer"] < len(row["choices"]) for row in found)
    task = (tmp_path / "run" / "task.yaml").read_text(encoding="utf-8")
    assert f'test: "{tmp_path}/run/questions.jsonl"' in task and '"{{question}}"' in task


def test_options_of_llama_server_are_translated() -> None:
    words, key = translate(
        "--port 81 --temp 0.8 --ctx-size 512 --parallel 2 --api-key secret --no-slots "
        "--cache-ram -1 --embedding --cors-origins http://a,http://b".split(),
        "m.gguf",
        "keys",
    )
    assert key == "secret" and words[:2] == ["serve", "m.gguf"] and "--temp" not in words
    pairs = list(zip(words, words[1:], strict=False))
    for pair in (
        ("--port", "81"),
        ("--ctx-size", "256"),
        ("--slots", "2"),
        ("--api-key-file", "keys"),
        ("--pooling", "mean"),
        ("--cache-ram", "0MiB"),
        ("--cors-origin", "http://b"),
    ):
        assert pair in pairs
    with pytest.raises(Unsupported, match="--lora"):
        translate(["--lora", "x"], "m.gguf")
    with pytest.raises(Unsupported, match="--pooling rank"):
        translate(["--pooling", "rank"], "m.gguf")


def test_the_small_model_has_a_template(tmp_path: Path) -> None:
    model = vs.load(llama_tests.small_model(tmp_path / "small.gguf", "{{ messages }}"))
    assert isinstance(model, LanguageModel)
    assert model.tokenizer.encode("hey", bos=True)[0] == 1
    assert model.file.metadata["tokenizer.chat_template"] == "{{ messages }}"


def test_the_report_counts_outcomes_by_file() -> None:
    entries = [
        {"test": "unit/test_a.py::test_x[1]", "outcome": "passed", "reason": ""},
        {"test": "unit/test_a.py::test_y", "outcome": "failed", "reason": "assert 404 == 200\nx"},
        {"test": "unit/test_b.py::test_z", "outcome": "skipped", "reason": ""},
    ]
    lines = llama_tests.report(entries)
    assert "test_a.py::test_y: assert 404 == 200" in lines
    assert lines[-3:] == [
        "| `test_a.py` | 1 | 1 | 0 |",
        "| `test_b.py` | 0 | 0 | 1 |",
        "| all | 1 | 1 | 1 |",
    ]


def test_outcomes_are_compared_with_the_list_of_failures() -> None:
    entries = [
        {"test": "unit/test_a.py::test_x[1/2]", "outcome": "passed", "reason": ""},
        {"test": "unit/test_a.py::test_y", "outcome": "failed", "reason": "assert  404 == 200\nx"},
        {"test": "unit/test_b.py::test_z", "outcome": "skipped", "reason": ""},
    ]
    assert llama_tests.failures_of(entries) == {"test_a.py::test_y": "assert 404 == 200"}
    old = {"test_a.py::test_x[1/2]": "old", "test_c.py::test_of_another_file": "other"}
    assert llama_tests.updated(old, entries) == {
        "test_a.py::test_y": "assert 404 == 200",
        "test_c.py::test_of_another_file": "other",
    }
    expected = ["test_a.py::test_y", "test_b.py::test_z", "test_c.py::test_of_another_file"]
    assert llama_tests.differences(entries, expected) == []
    assert llama_tests.differences(entries, []) == ["not expected to fail: test_a.py::test_y"]
    assert llama_tests.differences(entries[:1], ["test_a.py::test_x[1/2]"]) == [
        "expected to fail: test_a.py::test_x[1/2]"
    ]


def test_the_table_counts_failures_by_kind() -> None:
    failures = {
        "test_a.py::test_x[1]": "[shim] no counterpart of --lora",
        "test_a.py::test_y": "assert 404 == 200",
        "test_b.py::test_z": "assert 6 == 5",
    }
    lines = llama_tests_table.table(["test_b.py", "test_a.py", "test_a.py", "test_b.py"], failures)
    assert lines[2:] == [
        "| `test_a.py` | 0 | 2 | 1 | 1 | 0 | 0 |",
        "| `test_b.py` | 1 | 1 | 0 | 0 | 0 | 1 |",
        "| all | 1 | 3 | 1 | 1 | 0 | 1 |",
    ]
    begin, end = llama_tests_table.BEGIN, llama_tests_table.END
    page = llama_tests_table.with_table(f"a\n{begin}\nold\n{end}\nb\n", lines)
    assert page.splitlines()[0] == "a" and page.splitlines()[-1] == "b" and "old" not in page
    with pytest.raises(SystemExit, match="expected"):
        llama_tests_table.with_table(f"a {begin}", lines)


def test_starts_of_the_shim_leave_one_key_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_server_shim, "FOLDER", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(llama_server_shim.MODEL_VARIABLE, "m.gguf")
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    for key in (["--api-key", "secret"], ["--api-key", "secret"], []):
        monkeypatch.setattr(sys, "argv", ["llama-server", *key])
        llama_server_shim.main()
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "secret\n"
    assert os.name == "nt" or file.stat().st_mode & 0o077 == 0
    assert [str(file) in words for words in started] == [True, True, False]


def test_a_server_is_shared_by_tests_with_the_same_options() -> None:
    servers = SharedServers()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    first = servers.Popen([*command, "--seed", "1", "--port", "80"], env=None)
    first.terminate()
    first.kill()
    assert first.wait() == 0 and first.poll() is None
    assert servers.Popen([*command, "--seed", "2", "--port", "80"]) is first
    other = servers.Popen([*command, "--port", "81"])
    assert other is not first and first.poll() is not None
    other.process.kill()
    other.process.wait()
    again = servers.Popen([*command, "--port", "81"])
    assert again is not other and again.poll() is None
    servers.close()
    assert again.poll() is not None
