"""--policy and --objective: one pair of options for all commands that plan."""

from __future__ import annotations

import json
from pathlib import Path

import multi_device
import pytest
from benchmark_folders import SUITES
from multi_device import Together
from test_cli import call
from test_cli_run import data_of

import vksched as vs
from vksched.bench import report
from vksched.cli.options.policy_options import DEFAULT, POLICIES
from vksched.planner import planner

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[64,64] x) => (float[64,64] y) { h = Relu(x)\n y = MatMul(h, x) }"""
CARDS = str(Path(__file__).parents[2] / "examples" / "data" / "two_cards.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return str(path)


def test_the_words_are_those_of_the_planner() -> None:
    assert sorted(POLICIES) == sorted(planner.POLICIES)
    assert planner.check_objective(DEFAULT.objective, DEFAULT.policy, "test").name == "latency"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("plan", ["--devices", "cpu"]),
        ("info", ["--devices", "cpu"]),
        ("run", ["--devices", "cpu", "--random-inputs"]),
        ("bench", ["--suite", "devices", "--suite-dir", str(SUITES), "--devices", "cpu"]),
    ],
)
def test_every_command_refuses_the_same(
    capsys: pytest.CaptureFixture[str], command: str, options: list[str]
) -> None:
    args = [command, *([] if command == "bench" else ["no-such.onnx"]), *options]
    for more, code, match in (
        (
            ["--policy", "best"],
            2,
            "'best' is not one of 'auto', 'priority', 'earliest-finish', 'work-stealing'",
        ),
        (["--objective", "speed"], 1, "expected a known objective, got 'speed'; try one of"),
        (["--objective", "latency=x"], 1, "expected weights from 0 to"),
        (
            ["--policy", "priority", "--objective", "energy"],
            1,
            "the policy priority, which ignores objectives, got energy",
        ),
    ):
        found, out, err = call(capsys, *args, *more)
        assert (found, out) == (code, "") and match in err, err  # before the model is looked for
    reported = call(capsys, command, "--help")[1]
    assert "--policy" in reported and "--objective" in reported


def test_info_plans_for_the_aim(capsys: pytest.CaptureFixture[str], model: str) -> None:
    args = ("info", model, "--topology", CARDS)
    assert {data_of(capsys, *args)[key] for key in ("policy", "objective")} == {"auto", "latency"}
    found = data_of(capsys, *args, "--objective", "memory")
    assert found["objective"] == "memory"
    assert any("for memory" in note for note in found["notes"])
    dynamic = data_of(capsys, *args, "--policy", "earliest-finish")
    assert any(
        note.startswith("earliest-finish: each run decides again") for note in dynamic["notes"]
    )
    first = {
        row["name"]: row["nodes"]
        for row in data_of(capsys, *args, "--policy", "priority")["devices"]
    }
    assert first["small"] == 2


def test_run_carries_out_the_aim(capsys: pytest.CaptureFixture[str], model: str) -> None:
    args = ("run", model, "--devices", "cpu", "--random-inputs")
    for more in (("--policy", "work-stealing"), ("--objective", "throughput"), ()):
        found = data_of(capsys, *args, *more, "--compare-with", "numpy", "--report")
        assert found["policy"] == (more[1] if "--policy" in more else "auto")
        assert found["objective"] == ("throughput" if "--objective" in more else "latency")
        assert not found["check"][0]["wrong"] and found["report"]["runs"] == 1


def test_run_hands_the_aim_to_every_scheduler(
    capsys: pytest.CaptureFixture[str],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seen: list[tuple[str, str]] = []
    real = vs.Scheduler.__init__

    def init(self: vs.Scheduler, devices: object, policy: str, **more: object) -> None:
        seen.append((policy, str(more["objective"])))
        real(self, devices, policy, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(vs.Scheduler, "__init__", init)
    args = ("run", model, "--devices", "cpu", "--random-inputs", "--objective", "energy")
    data_of(capsys, *args, "--profile", str(tmp_path / "t.json"))
    assert seen == [("auto", "energy")] * 2
    refused = ("run", model, "--random-inputs", "--policy", "work-stealing", "--profile", "t.json")
    code, _, err = call(capsys, *refused)
    assert code == 2 and "--profile and --policy work-stealing exclude each other" in err


@pytest.mark.filterwarnings("default")  # as a user has it, not as an error
def test_bench_measures_several_devices_for_the_aim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = call(capsys, "bench", "--suite", "models", "--policy", "priority")
    assert code == 2 and "--suite models takes no --policy and no --objective" in err
    asked: list[dict[str, str]] = []

    def measured(*_: object, **planning: str) -> Together:
        asked.append(planning)
        if len(asked) == 2:
            raise vs.PlanError("[plan] expected a graph without states")
        return Together({"cpu": [2.0], "other": [3.0]}, [2.0], ["cpu"])

    monkeypatch.setattr(multi_device, "measure", measured)
    monkeypatch.setattr(report, "measure_ceiling", lambda *_: pytest.fail("no ceilings are needed"))
    args = ["bench", "--suite", "devices", "--suite-dir", str(SUITES), "--devices", "cpu"]
    args += ["--policy", "work-stealing", "--json"]
    code, out, err = call(capsys, *args)
    assert "note: " in err and "ResNet-18 is left out: " in err and "without states" in err
    assert code == 0 and asked == [{"policy": "work-stealing", "objective": "latency"}] * 4
    assert len(json.loads(out)["facts"]) == 3 * 3  # of all models but the second
