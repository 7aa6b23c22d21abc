"""What several computers did in a run is on the driver's tape, by the driver's clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from cluster_nodes import StartedWorkers, cluster

import vksched as vs
from vksched.cli import main
from vksched.common.dtypes import NDArray
from vksched.trace.events import SystemClock

SHIFTED_S = 5000.0
PACE = 2e-5


class OffClock:
    """Ahead by SHIFTED_S at first, and then by more and more."""

    def now(self) -> float:
        return SystemClock.now() * (1 + PACE) + SHIFTED_S


@pytest.fixture
def sched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[vs.Scheduler]:
    """A driver and two nodes, whose clocks are off."""
    with monkeypatch.context() as patch:
        patch.setattr("vksched.cluster.worker_process.Trace", lambda: vs.Trace(OffClock()))
        nodes = StartedWorkers(tmp_path)
        pair = [nodes("node1"), nodes("node2")]
    try:
        devices = ["node1/cpu", "node2/cpu"]
        with vs.Scheduler(devices, cluster=cluster(pair), trace=vs.Recorder()) as sched:
            yield sched
    finally:
        nodes.close()


@pytest.fixture
def run(sched: vs.Scheduler) -> vs.CompiledGraph:
    """x crosses from node1 to node2, from there to node1 again, and to the driver."""
    x = vs.input("x", (64, 64))
    a = vs.exp(x, name="a")
    b = vs.matmul(a, a, name="b")
    out = vs.relu(vs.tanh(b, name="c") + a, name="d")
    placement = {"*": "node1/cpu", "b": "node2/cpu"}
    return sched.compile(out, placement)


def test_each_send_is_before_its_take_within_the_bound_that_is_reported(
    run: vs.CompiledGraph, rng: np.random.Generator
) -> None:
    for _ in range(3):
        run(x=rng.standard_normal((64, 64), np.float32))
    tape = run.trace
    sends, takes = tape.select("send"), tape.select("recv")
    assert {(e.device, e.fields["to"]) for e in sends} == {
        ("node1/host", "node2/host"),
        ("node2/host", "node1/host"),
        ("node1/host", "host"),
    }
    (first, *_, last) = tape.select("run")
    assert "node1 within" in str(first.fields["clocks"])
    bounds = {event.run: most_s(str(event.fields["clocks"])) for event in tape.select("run")}
    pairs = 0
    for take in takes:
        of, to = take.fields["of"], take.device
        (send,) = (
            s
            for s in sends
            if s.run == take.run and (s.device, s.fields["to"]) == (of, to)
            and s.fields["node"] == take.fields["node"]
        )  # fmt: skip
        assert send.start_s <= take.end_s + 2.1 * bounds[take.run]  # which is told in few digits
        assert send.fields["bytes"] == take.fields["bytes"] == 64 * 64 * 4
        pairs += 1
    assert pairs == len(sends) == 3 * 3
    for event in tape.events:
        if event.run == last.run and event.name != "run":
            assert last.start_s <= event.start_s + 1.1 * bounds[last.run]
            done_s = float(str(event.fields.get("observed_s", event.end_s)))
            assert event.end_s <= done_s <= last.end_s + 1.1 * bounds[last.run]


def most_s(clocks: str) -> float:
    """Return the largest of the bounds that are told."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    ranges = [each.split(" within ")[1].split() for each in clocks.split(", ")]
    return max(float(number) * units[unit] for number, unit in ranges)


def test_all_that_hosts_do_is_on_their_lanes_with_arrows_between_them(
    run: vs.CompiledGraph, rng: np.random.Generator, tmp_path: Path
) -> None:
    values: NDArray = rng.standard_normal((64, 64), np.float32)
    run(x=values)
    splits = {(e.device, e.fields["split"]) for e in run.trace.select("split")}
    assert splits == {
        (run.plan.topology.devices[split.device].name, split.id) for split in run.plan.splits
    }
    for name in ("submit", "wait", "copy"):
        assert {e.device.partition("/")[0] for e in run.trace.select(name)} >= {"node1", "node2"}
    path = tmp_path / "t.json"
    run.trace.save(path)
    shown: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    lanes = {e["args"]["name"]: e["pid"] for e in shown if e["name"] == "process_name"}
    assert {"host", "node1/host", "node2/host", "node1/cpu", "node2/cpu"} <= lanes.keys()
    arrows = [e for e in shown if e.get("cat") == "transfer"]
    begins = {e["id"]: e for e in arrows if e["ph"] == "s"}
    ends = {e["id"]: e for e in arrows if e["ph"] == "f"}
    assert len(begins) == len(ends) == 3
    assert {(begins[i]["pid"], ends[i]["pid"]) for i in begins} == {
        (lanes["node1/host"], lanes["node2/host"]),
        (lanes["node2/host"], lanes["node1/host"]),
        (lanes["node1/host"], lanes["host"]),
    }
    assert all(begins[i]["ts"] <= ends[i]["ts"] for i in begins)
    page = str(tmp_path / "t.html")
    for command in (["trace", str(path), "--html", page], ["replay", str(path)]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    assert "several computers carried them out" in done.output
    shown_text = (tmp_path / "t.html").read_text()
    assert "take a of node1/host" in shown_text and "clocks node1 within" in shown_text


def test_a_run_that_fails_leaves_what_was_done_until_then(sched: vs.Scheduler) -> None:
    x = vs.exp(vs.input("x", (4,)), name="a")
    run = sched.compile(vs.relu(x), {"*": "node1/cpu"}, observe={"a": lambda *_: False})
    with pytest.raises(vs.RunCancelled):
        run(x=np.ones(4, np.float32))
    (failed,) = run.trace.select("failed")
    assert failed.fields["error"] == "RunCancelled"
    assert [e.fields["of"] for e in run.trace.select("recv")] == ["node1/host"]


def test_the_memory_of_all_devices_is_reported_and_that_it_is_released(sched: vs.Scheduler) -> None:
    (tape,) = sched.trace.sinks
    assert isinstance(tape, vs.Tape)
    x = vs.input("x", (64, 64))
    w = vs.weight(np.eye(64, dtype=np.float32), name="w")
    for name in ("one", "two"):
        run = sched.compile(vs.matmul(x, w, name=name), {name: "node1/cpu", "w": "node1/cpu"})
        run(x=np.ones((64, 64), np.float32))
    reported = [e.fields for e in tape.select("prepare", "node1/cpu")]
    assert [fields["weight_bytes"] for fields in reported] == [4 * 64 * 64] * 2
    assert [fields["resident_bytes"] for fields in reported] == [0, 4 * 64 * 64]
    sched.close()
    freed = [e.fields for e in tape.select("release", "node1/cpu")]
    assert sorted(fields["resident_bytes"] for fields in freed) == [0, 4 * 64 * 64]
    assert all(event.end_s >= event.start_s for event in tape.events)
