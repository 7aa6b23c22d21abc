"""Replays of tapes: the same where nothing has changed, and each planted difference is found."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from traced import X, graph_of_two_devices, null_devices, save_two_runs

import vksched as vs
from vksched.cli import main
from vksched.engine.replay.replay_tape import Replay, replay_tape
from vksched.planner import planner
from vksched.trace.read import tape_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_two_runs(tmp_path_factory.mktemp("tape") / "t.json")


@pytest.fixture
def data(saved: Path) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(saved.read_text("utf-8"))
    return out


def replayed(tape: vs.Tape, path: Path) -> Replay:
    tape.save(path)
    return replay_tape(vs.load_tape(path))


def test_a_tape_is_the_same_when_nothing_has_changed(saved: Path) -> None:
    found = replay_tape(vs.load_tape(saved))
    assert found.difference is None and found.notes == ()
    assert (found.plans, found.runs) == (1, 2) and found.events > 30
    assert str(found).endswith("no difference")


@pytest.mark.parametrize("policy", ["auto", "priority"])
def test_runs_on_real_devices_are_in_the_order_of_their_plans(
    devices: list[str], policy: str, tmp_path: Path
) -> None:
    tape = vs.Tape()
    with vs.Scheduler(devices, policy, trace=tape) as sched:
        names = [device.name for device in sched.devices]
        placed = {"a": names[0], "b": names[-1]}
        feeds = {**graph_of_two_devices(), "placement": placed}
        run = sched.compile(**feeds)
        futures = [run.submit(x=X) for _ in range(8)]
        assert all(future.result()["b"].shape == (2, 8) for future in futures)
    found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and found.runs == 8


def test_several_graphs_in_several_schedulers_share_a_tape(tmp_path: Path) -> None:
    tape = vs.Tape()
    for policy in ("auto", "priority"):
        with vs.Scheduler(null_devices(), policy, trace=tape) as sched:
            double = sched.function(lambda x: x * 2.0)
            for size in (1, 2, 3):
                double(x=np.ones(size, np.float32))
            sched.compile(**graph_of_two_devices())(x=X)
    found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and (found.plans, found.runs) == (8, 8)


def split_moved(tape: dict[str, Any]) -> None:
    tape["plans"][0]["splits"][0]["device"] = 1


def events_swapped(tape: dict[str, Any]) -> None:
    at = next(i for i, e in enumerate(tape["events"]) if e[0] == "submit")
    tape["events"][at - 1], tape["events"][at] = tape["events"][at], tape["events"][at - 1]


def bytes_changed(tape: dict[str, Any]) -> None:
    copies = [e for e in tape["events"] if e[0] == "copy" and e[6]["way"] == "out"]
    copies[-1][6]["bytes"] += 4


def totals_changed(tape: dict[str, Any]) -> None:
    runs = [e for e in tape["events"] if e[0] == "run"]
    runs[-1][6]["stats"]["transfer_bytes"] += 4


def event_lost(tape: dict[str, Any]) -> None:
    del tape["events"][next(i for i, e in enumerate(tape["events"]) if e[0] == "wait")]


def event_doubled(tape: dict[str, Any]) -> None:
    at = next(i for i, e in enumerate(tape["events"]) if e[0] == "wait")
    tape["events"].insert(at, copy.deepcopy(tape["events"][at]))


def place_in_memory_moved(tape: dict[str, Any]) -> None:
    tape["plans"][0]["locations"][0][2][1] += 16


def rule_changed(tape: dict[str, Any]) -> None:
    tape["plans"][0]["reasons"][0] += ", or not"


def wait_left_out(tape: dict[str, Any]) -> None:
    split = next(s for s in tape["plans"][0]["splits"] if s["waits"])
    split["waits"] = []


def another_device(tape: dict[str, Any]) -> None:
    copies = [e for e in tape["events"] if e[0] == "submit"]
    copies[-1][1] = "gpu:7"


PLANTED: dict[Callable[[dict[str, Any]], None], str] = {
    split_moved: "plan 0: split 0: device: the tape has gpu:1, the replay gpu:0",
    events_swapped: r"run 0: event \d+ of \d+: the tape has submit .*, the replay copy in of x",
    bytes_changed: r"run 1: event \d+ of \d+: the tape has copy out of .*, 260 bytes.* 256 bytes",
    totals_changed: "run 1: event .* transfer_bytes 260, .* transfer_bytes 256",
    event_lost: r"run 0: event \d+ of \d+: the tape has .*, the replay wait of split 0 on gpu:0",
    event_doubled: r"run 0: event \d+ of \d+: the tape has wait of split 0",
    place_in_memory_moved: "plan 0: locations: the tape has ",
    rule_changed: "plan 0: the place of .*: the tape has .*, or not, the replay ",
    wait_left_out: r"plan 0: split \d: waits: the tape has \[\], the replay \[0\]",
    another_device: "run 1: event .* on gpu:7, the replay .* on gpu:",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_difference_is_found(
    data: dict[str, Any], tmp_path: Path, plant: Callable[[dict[str, Any]], None]
) -> None:
    plant(data["vksched"])
    difference = replay_tape(tape_of(data)).difference
    assert difference is not None and re.search(PLANTED[plant], str(difference))
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    done = CliRunner().invoke(main, ["replay", str(path), "--json"])
    assert done.exit_code == 1 and json.loads(done.stdout)["difference"]["what"] == difference.what
    assert done.stderr.startswith("Error: [replay] ")


def test_the_difference_that_comes_first_is_reported(data: dict[str, Any]) -> None:
    totals_changed(data["vksched"])
    event_lost(data["vksched"])
    difference = replay_tape(tape_of(data)).difference
    assert difference is not None and "run 0" in difference.where


def test_another_planner_is_reported_by_its_version(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = planner.plan_graph

    def other(*args: Any, **options: Any) -> vs.Plan:
        return original(*args, **{**options, "overrides": ()})

    monkeypatch.setattr("vksched.planner.planner.plan_graph", other)
    data["vksched"]["version"] = "0.0.1"
    found = replay_tape(tape_of(data))
    assert found.difference is not None and found.difference.where == "plan 0"
    assert f"the tape is of vksched 0.0.1, this is {vs.__version__}" in found.notes


def test_a_run_that_a_fault_ended_did_the_first_part(tmp_path: Path) -> None:
    tape, devices = vs.Tape(), null_devices()
    devices[1] = vs.FaultInjectionDevice(devices[1], at=1)
    with vs.Scheduler(devices, trace=tape) as sched, pytest.warns(vs.VkschedWarning):
        run = sched.compile(**graph_of_two_devices())
        run(x=X)
        run(x=X)
    assert [e.fields["cause"] for e in tape.select("plan")] == ["compile", "fault"]
    (failed,) = tape.select("failed")
    assert failed.fields["error"] == "DeviceLost" and failed.device == "gpu:1"
    found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and (found.plans, found.runs) == (2, 3)


def test_runs_that_began_before_the_oldest_event_did_the_last_part(tmp_path: Path) -> None:
    tape = vs.Tape(limit=30)
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        run = sched.compile(**graph_of_two_devices())
        for _ in range(5):
            run(x=X)
    assert tape.dropped > 20 and len(tape.events) == 30
    found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and found.runs == 2
    assert any("dropped for later" in note for note in found.notes)
    data = json.loads((tmp_path / "t.json").read_text("utf-8"))
    bytes_changed(data["vksched"])
    assert replay_tape(tape_of(data)).difference is not None


@pytest.mark.parametrize("policy", ["earliest-finish", "work-stealing"])
def test_runs_that_decide_anew_are_not_compared_and_that_is_reported(
    policy: str, tmp_path: Path
) -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), policy, trace=tape) as sched:
        x = vs.input("x", X.shape)
        sched.compile([vs.exp(x), vs.softmax(x @ x)])(x=X)
    found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and found.runs == 0
    assert found.notes == ("plan 0: its 1 run scheduled dynamically",)
    data = json.loads((tmp_path / "t.json").read_text("utf-8"))
    split_moved(data["vksched"])
    assert replay_tape(tape_of(data)).difference is not None


def test_integer_weights_whose_bounds_decide_on_places(tmp_path: Path) -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        x = vs.input("x", (4,), "int64", bounds=(0, 9))
        small, large = vs.constant(np.array([1, 5])), vs.constant(np.array([1, 1 << 40]))
        outputs = [vs.gather(vs.input("v", (9,)), small), x[:2] + large, x[:2] + small]
        sched.compile(outputs)(x=np.arange(4), v=np.ones(9, np.float32))
    assert replayed(tape, tmp_path / "t.json").difference is None


def test_the_command_says_so_and_refuses_what_is_no_tape(saved: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["replay", str(saved)])
    assert done.exit_code == 0 and done.stdout.endswith("no difference\n")
    (tmp_path / "cut.json").write_bytes(saved.read_bytes()[:1000])
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "cut.json")])
    assert done.exit_code == 1 and "the file is cut" in done.stderr


def test_a_plan_that_cannot_be_built_any_more_is_a_difference(data: dict[str, Any]) -> None:
    data["vksched"]["plans"][0]["topology"]["devices"][2]["memory_bytes"] = 64
    data["vksched"]["plans"][0]["topology"]["devices"][0]["memory_bytes"] = 64
    data["vksched"]["plans"][0]["topology"]["devices"][1]["memory_bytes"] = 64
    difference = replay_tape(tape_of(data)).difference
    assert difference is not None and difference.replay.startswith("none: ")
