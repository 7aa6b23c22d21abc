"""Run llama.cpp's own server tests against `vksched serve`.

    python scripts/checks/llama_tests.py                        # the files of shared features
    python scripts/checks/llama_tests.py test_tokenize.py -k bos

The tests come from the source distribution of llama-cpp-python, which is downloaded into
build/llama_tests, as is the environment of the tests. A program with llama-server's options starts
vksched (llama_server_shim.py). The models of the tests are not in a package index: a small random
model with a vocabulary of single bytes replaces all of them, so tests of its texts fail. It prints
a table of the outcomes by file, and each failure with its reason.

llama_tests_failures.json lists the tests that fail, with the reasons. Exit code 0 if no other test
fails, all that ran of the list fail, and at least one test ran. `--store` replaces the entries of
the tests that ran.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import venv
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "llama_tests"
CHECKS = ROOT / "scripts" / "checks"
FAILURES = CHECKS / "llama_tests_failures.json"
SOURCE = "llama-cpp-python==0.3.36"
ARCHIVE = "llama_cpp_python-*.tar.gz"
INSIDE = "/vendor/llama.cpp/tools/server/tests/"
TEMPLATES = "/vendor/llama.cpp/models/templates/"
FILES = (
    "test_basic.py", "test_chat_completion.py", "test_completion.py", "test_embedding.py",
    "test_ignore_eos.py", "test_metrics.py", "test_rerank.py", "test_security.py",
    "test_stream.py", "test_template.py", "test_tokenize.py", "test_tool_call.py",
)  # fmt: skip
"""The test files of features that vksched has."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> int:
    args, more = _arguments()
    tests = sources(args.source)
    python = args.python or environment(tests)
    outcomes = FOLDER / "outcomes.jsonl"
    outcomes.unlink(missing_ok=True)
    env = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(_program()),
        "LLAMA_TESTS_MODEL": str(small_model(FOLDER / "small.gguf")),
        "LLAMA_TESTS_OUTCOMES": str(outcomes),
        "PYTHONPATH": os.pathsep.join([str(CHECKS), str(tests)]),
        "PYTHONWARNINGS": "ignore",
        "VKSCHED_TUNE": "0",
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "llama_tests_plugin", "-m", "not slow"]
    command += [f"unit/{name}" for name in args.files or FILES]
    subprocess.run([*command, "--tb=short", *more], cwd=tests, env=env)
    lines = outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else []
    entries = [json.loads(line) for line in lines]
    print("\n".join(report(entries)))
    expected = json.loads(FAILURES.read_text(encoding="utf-8")) if FAILURES.exists() else {}
    if args.store:
        expected = updated(expected, entries)
        FAILURES.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    print("\n".join(found := differences(entries, expected)))
    return 0 if entries and not found else 1


def sources(folder: Path | None) -> Path:
    """Return the folder of the tests. folder: an unpacked source distribution, or None to download
    it.
    """
    if folder is None:
        folder = FOLDER / "source"
        if not folder.exists():
            if not (found := [*FOLDER.glob(ARCHIVE)]):
                pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
                name = SOURCE.partition("==")[0]
                subprocess.run([*pip, "--no-binary", name, "-d", str(FOLDER), SOURCE], check=True)
                found = [*FOLDER.glob(ARCHIVE)]
            with tarfile.open(found[0]) as opened:
                members = [e for e in opened if INSIDE in e.name or TEMPLATES in e.name]
                opened.extractall(folder, members, filter="data")
    (tests,) = folder.glob(f"*{INSIDE}")
    return tests


def environment(tests: Path) -> Path:
    """Return the Python with the requirements of the tests, which is created if there is none."""
    folder = FOLDER / "environment"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = (tests / "requirements.txt").read_text()
    mark = FOLDER / "requirements.txt"
    if not mark.exists() or mark.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=False)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        subprocess.run([*pip, "-r", str(tests / "requirements.txt")], check=True)
        mark.write_text(wanted)
    return python


def _program() -> Path:
    """Return an executable file that runs the shim with this Python."""
    path = FOLDER / "llama-server"
    shim = CHECKS / "llama_server_shim.py"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{shim}" "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def small_model(path: Path, template: str = TEMPLATE) -> Path:
    """Write a random llama with a token per byte and a chat template, unless it exists."""
    if not path.exists():
        sys.path += [str(ROOT / "tests" / "importers")]
        from gguf_models import Tiny, write
        from tiny_vocabularies import sentence_piece

        more = sentence_piece(eos_token_id=2, bos_token_id=1)
        size = len(more["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
        tiny = Tiny(layers=2, vocabulary=size, context=4096)
        write(tiny, path, np.random.default_rng(0), {**more, "tokenizer.chat_template": template})
    return path


def failures_of(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the reason of each test that failed."""
    return {
        _name(entry): " ".join(str(entry["reason"]).split("\n")[0].split())[:160]
        for entry in entries
        if entry["outcome"] == "failed"
    }


def updated(expected: Mapping[str, str], entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the list of failures after a run, with those of tests that did not run."""
    ran = {_name(entry) for entry in entries}
    others = {name: reason for name, reason in expected.items() if name not in ran}
    return dict(sorted({**others, **failures_of(entries)}.items()))


def differences(entries: Sequence[Mapping[str, Any]], expected: Collection[str]) -> list[str]:
    """Return a line for each test that failed or passed unlike expected. expected: the tests that
    fail.
    """
    failed = failures_of(entries)
    passed = {_name(entry) for entry in entries if entry["outcome"] == "passed"} - failed.keys()
    lines = [f"not expected to fail: {name}" for name in failed if name not in expected]
    return lines + [f"expected to fail: {name}" for name in sorted(passed & set(expected))]


def _name(entry: Mapping[str, Any]) -> str:
    """Return the file and the name of a test."""
    file, _, test = str(entry["test"]).partition("::")
    return f"{file.rpartition('/')[2]}::{test}"


def report(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of outcomes by file, and a line per failure."""
    by_file: dict[str, Counter[str]] = {}
    for entry in entries:
        by_file.setdefault(_name(entry).partition("::")[0], Counter())[entry["outcome"]] += 1
    failures = [f"{name}: {reason}" for name, reason in failures_of(entries).items()]
    rows = [
        f"| `{name}` | {counts['passed']} | {counts['failed']} | {counts['skipped']} |"
        for name, counts in by_file.items()
    ]
    total = sum(by_file.values(), Counter[str]())
    rows.append(f"| all | {total['passed']} | {total['failed']} | {total['skipped']} |")
    return ["", *failures, "", "| file | passed | failed | skipped |", "|---|---|---|---|", *rows]


def _arguments() -> tuple[argparse.Namespace, Sequence[str]]:
    parser = argparse.ArgumentParser(
        description=f"{__doc__.splitlines()[0]} Other options are pytest's."
    )
    parser.add_argument("files", nargs="*", help="test files; those of shared features without")
    parser.add_argument("--source", type=Path, help="an unpacked source distribution")
    parser.add_argument("--python", type=Path, help="a Python with the requirements of the tests")
    parser.add_argument("--store", action="store_true", help="write the list of tests that fail")
    return parser.parse_known_args()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    sys.exit(main())
