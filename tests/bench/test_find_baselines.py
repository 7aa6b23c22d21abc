"""Baselines in folders: how they are found, and a process that has one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmark_folders import BASELINES as FOLDER
from click.testing import CliRunner
from test_baselines import CPU, SMALL

import vksched as vs
from vksched.bench.baseline_process import BaselineMissing, BaselineProcess
from vksched.bench.find_baselines import BASELINES, find_baselines, read_baseline
from vksched.bench.rounds import measure_case
from vksched.cli import main

TWICE = """
from doubling import VALUE

INSTALL = "pip install twice"
DEVICES = ("cpu",)

import numpy as np
from .helper import TIMES
from .protocol import Job, Skip, TimedCalls
from .workloads import Arrays, Spec, expected_of

class Twice:
    version = "2.1"

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind != "matmul":
            raise Skip("only products")
        return TimedCalls(lambda: None, lambda: TIMES * expected_of(spec, arrays), 1, "by numpy")

def open_baseline(device):
    return Twice()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a baseline and its helper."""
    (tmp_path / "twice.py").write_text(TWICE.replace("from doubling import VALUE\n", ""))
    (tmp_path / "helper.py").write_text("TIMES = 1\n")
    return tmp_path


def test_baselines_of_a_folder_stand_before_those_of_the_package(folder: Path) -> None:
    assert list(find_baselines()) == list(BASELINES)
    found = find_baselines([folder])
    assert list(found) == ["twice", *BASELINES]
    assert found["twice"].install == "pip install twice" and found["twice"].folder == folder
    assert found["twice"].takes("cpu") and not found["twice"].takes("vulkan:0")
    (folder / "torch.py").write_text("def open_baseline(device): ...\n")
    assert find_baselines([folder])["torch"].folder == folder


def test_baselines_of_the_repository_are_read_without_their_packages() -> None:
    found = find_baselines([FOLDER])
    own = [name for name in found if name not in BASELINES]
    assert own == ["iree", "kp", "ncnn", "wgpu"]
    assert all(found[n].takes("vulkan:0") and not found[n].takes("cpu") for n in own)
    assert found["ncnn"].install == "pip install ncnn"
    assert not found["llama.cpp"].takes("cpu") and not found["llama.cpp"].takes("vulkan:0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def open_baseline(:", "cannot read the baseline"),
        ("DEVICES = words()\ndef open_baseline(device): ...", "cannot read the baseline"),
        ("DEVICES = ('gpu',)\ndef open_baseline(device): ...", "expected DEVICES of"),
        ("def open_peer(device): ...", "expected a file with a function open_baseline"),
    ],
)
def test_a_folder_without_a_baseline_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(vs.GraphError, match=reason):
        find_baselines([tmp_path])


def test_a_file_that_only_helps_is_no_baseline(folder: Path) -> None:
    assert read_baseline(folder / "helper.py") is None


def test_a_process_has_a_baseline_of_a_folder(folder: Path) -> None:
    worker = BaselineProcess("twice", CPU, folder=folder)
    try:
        assert worker.version == "2.1"
        result = measure_case("cpu", SMALL, [worker], 0.001, rounds=1)
        assert result.figures[0].note == "by numpy" and result.figures[0].nmse == 0.0
    finally:
        worker.close()
    (folder / "twice.py").write_text(TWICE)
    with pytest.raises(BaselineMissing, match="No module named 'doubling'"):
        BaselineProcess("twice", CPU, [sys.executable], folder=folder)


def test_the_command_takes_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vksched.bench import peak_throughput

    monkeypatch.setattr(peak_throughput, "COPY_WORDS", 1 << 14)
    monkeypatch.setattr(peak_throughput, "TRIAL_S", 1e-4)
    words = ["bench", "--devices", "cpu", "--case", "matmul 64", "--time-budget", "0.01"]
    words += ["--baseline-dir", str(folder)]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2 and "--baseline-dir needs --baselines" in refused.output
    (folder / "helper.py").write_text("TIMES = 2\n")
    found = CliRunner().invoke(main, [*words, "--baselines", "twice"], catch_exceptions=False)
    assert found.exit_code == 0 and "twice: matmul 64: wrong result" in found.output
    (folder / "twice.py").write_text(TWICE)
    found = CliRunner().invoke(main, [*words, "--baselines", "twice"], catch_exceptions=False)
    assert "twice is missing: ModuleNotFoundError" in found.output
    assert "try pip install twice" in found.output
