"""The examination, on the software drivers and on made-up ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_devices import raw

from vksched.cli import main
from vksched.common.errors import DeviceError, VkschedError
from vksched.doctor import examine as module
from vksched.doctor import inspect_system, measure_device, prove_kernels
from vksched.doctor.examine import examine
from vksched.doctor.health_report import HealthReport, KernelFailure, KernelProof, read_report
from vksched.doctor.vulkan_loader import find_loader
from vksched.runtime.vulkan import device_check, driver_probe

WHOLE = KernelProof(3, 2, 1, ())


def quietly(stage: str, steps: int) -> Any:
    return lambda text: None


def examined(names: list[str] | None = None, kernels: bool = False) -> HealthReport:
    return examine(names, every_case=False, kernels=kernels, speed=False, begin=quietly)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Shows made-up devices."""

    def show(*devices: dict[str, Any], problem: str | None = None) -> None:
        answer = driver_probe.Answer(devices, problem)
        monkeypatch.setattr(driver_probe, "ask_drivers", lambda: answer)
        monkeypatch.setattr(inspect_system, "_display_vendors", set)
        monkeypatch.setattr(module, "prove", lambda *_: WHOLE)

    return show


def texts(report: HealthReport, level: str) -> list[str]:
    return [f"{f.subject}: {f.text}" for f in report.findings if f.level == level]


def test_the_loader_of_this_computer_has_a_version() -> None:
    loader = find_loader()
    assert tuple(map(int, loader.version.split("."))) >= (1, 1, 0)


def test_layers_of_the_environment_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_LOADER_LAYERS_ENABLE", "VK_LAYER_a,VK_LAYER_b")
    assert "layers: the environment enables VK_LAYER_a, VK_LAYER_b" in texts(examined(), "note")


def test_a_good_card_is_ready(cards: Any) -> None:
    cards(raw(0))
    report = examined(kernels=True)
    assert not report.has_problem
    assert report.verdict.startswith("ready: vulkan:0 (Radeon RX 6800)")
    assert report.devices[0].proof == WHOLE
    assert (
        "vulkan:0: 2 of 3 op cases equal numpy; 1 have no kernel here and run on the CPU"
        in texts(report, "ok")
    )
    (missing,) = texts(report, "note")
    assert "storage16 (" in missing
    assert "float16 (" not in missing


def test_a_card_that_cannot_be_opened_is_a_problem(cards: Any) -> None:
    cards(raw(0, usable=False, why="it has Vulkan 1.0"), raw(1))
    report = examined(kernels=True)
    assert texts(report, "problem") == ["vulkan:0: it has Vulkan 1.0"]
    assert report.verdict == "1 to mend: vulkan:0: it has Vulkan 1.0"
    assert [device.proof for device in report.devices] == [None, WHOLE]


def test_no_driver_is_a_problem(cards: Any) -> None:
    cards(problem="the loader finds no driver")
    report = examined()
    assert any("the loader finds no driver" in text for text in texts(report, "problem"))


def test_a_card_without_a_driver_is_a_problem(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(raw(0))
    monkeypatch.setattr(inspect_system, "_display_vendors", lambda: {"AMD", "NVIDIA"})
    (problem,) = texts(examined(), "problem")
    assert problem == "drivers: this computer has a GPU of NVIDIA that no Vulkan driver lists"


def test_wrong_kernels_are_problems(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(raw(0))
    failures = tuple(KernelFailure("add", f"case {n}", "nmse 1") for n in range(7))
    monkeypatch.setattr(module, "prove", lambda *_: KernelProof(9, 2, 0, failures))
    problems = texts(examined(kernels=True), "problem")
    assert problems[0] == "vulkan:0: add (case 0): nmse 1"
    assert problems[-1] == "vulkan:0: 2 more op cases are wrong"
    assert len(problems) == module.SHOWN_FAILURES + 1


# -- kernels in a child ----------------------------------------------------------------------------

CHILD = r"""
import json, sys, time
start = int(sys.argv[-1])
for case in range(start, 4):
    print("MESA note: ", end="", flush=True)
    sys.stdout.buffer.write(b"\xff odd bytes")
    print("\n" + json.dumps({{"number": case, "begin": ["op", str(case)]}}), flush=True)
    if case in {fatal}:
        {end}
    one = {{"op": "op", "case": str(case), "device": "d", "reason": "", "error": "", "nmse": None}}
    print("\n" + json.dumps({{"number": case, "outcome": one}}), flush=True)
    print('{{"number": cut', flush=True)
"""


def with_child(folder: Path, monkeypatch: pytest.MonkeyPatch, fatal: list[int], end: str) -> None:
    program = folder / "child.py"
    program.write_text(CHILD.format(fatal=fatal, end=end))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\\nexec {sys.executable} {program} "$@"\\n'.replace("\\n", "\n"))
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(prove_kernels, "selected_cases", lambda every: [None] * 4)


@pytest.mark.parametrize("check", device_check.CHECKS.values(), ids=lambda check: check.name)
@pytest.mark.parametrize(
    ("failure", "level", "text"),
    [
        ("", "ok", "all results of the check are right"),
        ("9 results are wrong", "problem", "9 results are wrong"),
        (None, "", ""),
    ],
)
def test_kernels_of_little_used_features_are_checked(
    failure: str | None,
    level: str,
    text: str,
    check: device_check.Check,
    cards: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards(raw(0))
    monkeypatch.setattr(
        device_check, "failure_of", lambda each, *_: failure if each is check else None
    )
    report = examined(kernels=True)
    about = [f for f in report.findings if check.feature in f.text]
    wanted = f"vulkan:0: {check.feature}: {text}"
    assert [(f.level, f"{f.subject}: {f.text}"[: len(wanted)]) for f in about] == (
        [(level, wanted)] if text else []
    )


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("import os; os.abort()", "the driver ended the process with signal 6"),
        ("time.sleep(60)", "the driver gave no answer for 2 s"),
        ("raise ValueError('odd')", "the process ended with code 1: ValueError: odd"),
    ],
)
def test_a_driver_that_ends_the_process_costs_one_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, message: str
) -> None:
    with_child(tmp_path, monkeypatch, [1, 2], end)
    monkeypatch.setattr(prove_kernels, "SILENT_S", 2.0)
    seen: list[str] = []
    proof = prove_kernels.prove("vulkan:0", False, seen.append)
    assert (proof.cases, proof.right, proof.on_cpu) == (4, 2, 0)
    assert [failure.case for failure in proof.failures] == ["1", "2"]
    assert proof.failures[0].error == message
    assert len(seen) == 4


def test_a_device_that_never_opens_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_child(tmp_path, monkeypatch, [], "pass")
    (tmp_path / "child.py").write_text("raise SystemExit(1)")
    proof = prove_kernels.prove("vulkan:0", False, lambda _: None)
    assert proof.right == 0
    assert [failure.error for failure in proof.failures] == [
        "the process ended with code 1: no message",
        "3 op cases were not run after 1 ends of the process",
    ]


def test_each_op_has_a_case() -> None:
    def ops(cases: list[prove_kernels.Case]) -> set[str]:
        return {getattr(case, "op", getattr(case, "function", "")) for case in cases}

    some, every = map(prove_kernels.selected_cases, (False, True))
    assert ops(some) == ops(every)
    assert len(some) < len(every) / 4


@pytest.mark.thorough
@pytest.mark.release
@pytest.mark.timeout(900)
def test_op_cases_of_a_software_driver_equal_numpy() -> None:
    proof = prove_kernels.prove("vulkan:0", False, lambda _: None)
    assert proof.failures == ()
    assert proof.cases == len(prove_kernels.selected_cases(False))


# -- measurements ----------------------------------------------------------------------------------


def test_measurements_are_those_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(device: str, suite: str, cases: str, more: object = ()) -> dict[str, Any]:
        figures = [
            {"runner": "vksched", "seconds": 0.5},
            {"runner": "llama.cpp", "seconds": 0.25},
            {"runner": "torch", "seconds": None},
        ]
        spec = (
            {"name": "matmul 1024", "kind": "matmul", "params": {}}
            if suite == "ops"
            else {"name": "prompt", "kind": "llm", "params": {"phase": "prompt", "tokens": 128}}
        )
        result = {"spec": spec, "flops": 4e9, "bytes": 1e9, "figures": figures}
        peak = {"flops_per_s": 2e12, "bytes_per_s": 3e11}
        return {"devices": [{"ceiling": peak}], "results": [result]}

    monkeypatch.setattr(measure_device, "_bench", bench)
    found = {one.name: one for one in measure_device.measure("vulkan:0")}
    assert (found["float32 arithmetic"].value, found["copy in memory"].value) == (2000, 300)
    assert (found["matmul 1024"].value, found["matmul 1024"].unit) == (8, "GFLOP/s")
    assert found["prompt"].value == 256
    assert found["prompt"].baselines == {"llama.cpp": 512}


@pytest.mark.parametrize("output", ["null", "", "[]", "{"])
def test_a_benchmark_without_results_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' '{output}'\nprintf 'odd \\377 byte' >&2\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(VkschedError, match="measurements of vulkan:0 failed: odd . byte"):
        measure_device.measure("vulkan:0")


def test_the_cpu_is_not_examined() -> None:
    with pytest.raises(DeviceError, match="expected Vulkan devices, got cpu"):
        examined(["cpu"])


# -- the command -----------------------------------------------------------------------------------


def test_the_command_on_software_drivers(tmp_path: Path) -> None:
    file = str(tmp_path / "report.json")
    command = ["doctor", "--no-kernels", "--no-speed", "--output", file, "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 3, done.output
    report = read_report(file)
    assert report.as_dict() == json.loads(done.stdout)
    assert report.devices
    assert all(device.type == "cpu" for device in report.devices)
    assert report.verdict.startswith("no GPU")


def test_exit_codes_and_tables(cards: Any) -> None:
    command = ["doctor", "--no-speed"]
    cards(raw(0))
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "ready: vulkan:0" in done.output
    cards(raw(0, usable=False, why="it has Vulkan 1.0"))
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert "1 to mend: vulkan:0: it has Vulkan 1.0" in done.output


def test_options_without_effect_are_refused() -> None:
    done = CliRunner().invoke(main, ["doctor", "--no-kernels", "--all-cases"])
    assert done.exit_code == 2
    assert "exclude each other" in done.output
