"""Models on several devices by one plan, beside each device alone."""

from __future__ import annotations

import json

import multi_device
import numpy as np
import pytest
from benchmark_folders import SUITES
from click.testing import CliRunner
from conftest import DEVICE_SETS
from multi_device import Together, measure, together_facts
from prediction_facts import Model

import vksched as vs
from vksched.bench import report
from vksched.bench.baselines.workloads import Spec
from vksched.cli import main
from vksched.common.dtypes import NDArray
from vksched.engine.executable import CompiledGraph

DECODER = {"model": "gpt2_mini", "past": 8, "layers": 1, "width": 24, "words": 50}
SMALL = Spec("decoder", "model", "models", DECODER)
TWO = [*[names[0] for names in DEVICE_SETS.values() if len(names) == 1][1:], "cpu"][:2]


def test_the_fastest_device_is_that_of_medians_and_the_ratio_that_of_rounds() -> None:
    found = Together({"a": [1.0, 9.0, 2.0], "b": [3.0, 3.0, 3.0]}, [1.0, 18.0, 3.0], ["a"])
    assert found.fastest == "a" and found.ratio == 1.5


def test_facts_tell_each_device_and_what_all_of_them_take(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Together({"a": [2.0], "b": [3.0]}, [2.2], ["a", "b"])
    monkeypatch.setattr(multi_device, "measure", lambda *_, **__: found)
    alone, other, whole = together_facts(["a", "b"], SMALL, 0.0)
    assert (alone.value, other.value, whole.value) == (2.0, 3.0, 2.2)
    assert whole.name == "decoder: all by one plan, beside a alone" and whole.device == "a + b"
    assert whole.ratio == pytest.approx(1.1)
    assert whole.note == "work on a, b; over 5 % slower"


@pytest.mark.skipif(len(TWO) < 2, reason="no Vulkan device here")
def test_a_small_model_is_measured_in_turns() -> None:
    found = measure(TWO, Model.of(SMALL), 0.0, calibrates=False)
    assert [*found.alone_s] == TWO and set(found.used) <= {*TWO}
    assert {len(rounds) for rounds in (*found.alone_s.values(), found.all_s)} == {
        multi_device.ROUNDS
    }
    assert found.ratio > 0


@pytest.mark.skipif(len(TWO) < 2, reason="no Vulkan device here")
def test_a_stream_is_measured_where_plans_are_for_throughput(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multi_device, "_seconds", None)
    monkeypatch.setattr(multi_device, "ROUNDS", 1)
    found = measure(TWO, Model.of(SMALL), 0.0, False, objective="throughput=2")
    assert len(found.all_s) == 1 and found.ratio > 0


class Timed:
    """A network whose runs take given seconds of a clock."""

    compiled: CompiledGraph

    def __init__(self, *taken_s: float) -> None:
        self.taken_s, self.now_s = [*taken_s], 0.0

    def result(self) -> NDArray:
        self.now_s += self.taken_s.pop(0)
        return np.zeros(1)

    def close(self) -> None:
        pytest.fail("others may want it")


@pytest.mark.parametrize(
    ("taken_s", "expected_s", "left"),
    [
        ((0.3, 0.1), 0.3, 1),  # a long run is a turn
        ((0.03, 0.01, 0.02, 0.5), 0.02, 1),
        ((0.009, *[0.001] * 60), 0.001, 18),  # the first one, slowed by others, does not count
    ],
)
def test_a_turn_of_short_runs_has_several(
    monkeypatch: pytest.MonkeyPatch, taken_s: tuple[float, ...], expected_s: float, left: int
) -> None:
    network = Timed(*taken_s)
    monkeypatch.setattr(multi_device.time, "perf_counter", lambda: network.now_s)
    assert multi_device._turn(network, multi_device._seconds) == pytest.approx(expected_s)
    assert abs(len(network.taken_s) - left) <= 1  # sums of a twentieth are not exact


@pytest.mark.skipif(len(TWO) < 2, reason="no Vulkan device here")
def test_the_order_of_turns_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(multi_device, "_turn", lambda network, _: asked.append(network) or 1.0)
    measure(TWO, Model.of(SMALL), 0.0, calibrates=False)
    assert len({*asked}) == 3 and len(asked) == 3 * multi_device.ROUNDS
    rounds = [asked[at : at + 3] for at in range(0, len(asked), 3)]
    assert rounds[1] == rounds[0][::-1] and rounds[2] == rounds[0]


def test_one_device_is_not_enough() -> None:
    with pytest.raises(vs.GraphError, match="expected two devices for suite devices, got cpu; try"):
        measure(["cpu"], Model.of(SMALL), 0.0)


def test_the_command_prints_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Together({"cpu": [2.0], "other": [3.0]}, [2.0], ["cpu"])
    monkeypatch.setattr(multi_device, "measure", lambda *_, **__: found)
    monkeypatch.setattr(report, "measure_ceiling", lambda *_: pytest.fail("no ceilings are needed"))
    options = ["bench", "--suite-dir", str(SUITES), "--suite", "devices", "--devices", "cpu"]
    options += ["--case", "ResNet-18"]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0 and "all by one plan" in " ".join(result.output.split())
    data = json.loads(CliRunner().invoke(main, [*options, "--json"]).output)
    assert [fact["value"] for fact in data["facts"]] == [2.0, 3.0, 2.0]
