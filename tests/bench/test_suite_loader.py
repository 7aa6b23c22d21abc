"""Suites in folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmark_folders import SUITES
from click.testing import CliRunner

import vksched as vs
from vksched.bench.suite_loader import load_suites
from vksched.bench.suites import find_suite
from vksched.cli import main

SONGS = """
from notes_of_songs import NOTES
from vksched.bench.baselines.workloads import Spec
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.suite_loader import Suite


def _cases(options):
    size = int(options.more.get("size", ["8"])[0])
    yield Spec("a song", "unary", "songs", {"op": "relu", "shape": [4, size]})


def _run_facts(devices, specs, options):
    width = specs[0]["shape"][1]
    return {"songs": iter([ExtraMetric("+".join(devices), f"notes of {width}", NOTES, "s")])}


SUITE = Suite("songs", _cases, option_names=("size",), run_facts=_run_facts)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite and its helper."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "suite_of_songs.py").write_text(SONGS)
    (tmp_path / "notes_of_songs.py").write_text("NOTES = 3.0\n")
    return tmp_path


def test_suites_of_the_repository() -> None:
    assert sorted(load_suites([SUITES])) == ["clients", "devices", "planning", "prediction"]


def test_the_command_runs_a_suite_of_a_folder(folder: Path) -> None:
    words = ["bench", "--suite", "songs", "--devices", "cpu", "--json"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 1 and "expected a suite of ops, models" in refused.output
    words += ["--suite-dir", str(folder), "--suite-option", "size=12"]
    found = CliRunner().invoke(main, words, catch_exceptions=False)
    (fact,) = json.loads(found.output)["facts"]
    assert (fact["device"], fact["name"], fact["value"]) == ("cpu", "notes of 12", 3.0)


def test_a_folder_without_a_suite_is_refused(tmp_path: Path, folder: Path) -> None:
    none = tmp_path / "none"
    none.mkdir()
    with pytest.raises(vs.GraphError, match="expected a file with a constant SUITE in"):
        find_suite("songs", [none])
    (none / "suite_that_fails.py").write_text("import no_such_module\n")
    with pytest.raises(vs.GraphError, match=r"cannot load the suite .*no_such_module"):
        find_suite("songs", [none])
    (none / "suite_that_fails.py").unlink()
    (none / "json.py").write_text("")
    with pytest.raises(vs.GraphError, match=r"json.py has the name of another module"):
        find_suite("songs", [none])
