"""Tapes: what they keep, that they stay bounded, from any number of threads and across forks."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import THOROUGH
from traced import X, graph_of_two_devices, null_devices

import vksched as vs
from vksched.common.errors import VkschedError
from vksched.topology.device_spec import ALIGN_BYTES
from vksched.trace import tape as tapes


def event(number: int, **more: Any) -> vs.Event:
    return vs.Event("submit", "gpu:0", float(number), number + 1.0, number, {"split": 0}, **more)


def test_a_tape_keeps_the_last_events_and_counts_the_others() -> None:
    tape = vs.Tape(limit=3)
    for number in range(10):
        tape(event(number))
    assert [e.run for e in tape.events] == [7, 8, 9] and tape.dropped == 7
    assert repr(tape) == "<Tape: 3 events, 7 dropped>"
    tape.clear()
    assert not tape.events and tape.dropped == 0
    with pytest.raises(ValueError, match="a limit of 1 or more"):
        vs.Tape(limit=0)


@pytest.mark.scales
def test_ten_million_events_take_no_more_memory_than_the_limit() -> None:
    count = 10_000_000 if THOROUGH else 1_000_000
    tape, one = vs.Tape(), event(0)
    for _ in range(tapes.EVENTS):
        tape(one)
    full = sys.getsizeof(tape.events)
    for _ in range(count - tapes.EVENTS):
        tape(one)
    assert len(tape.events) == tapes.EVENTS and tape.dropped == count - tapes.EVENTS
    assert sys.getsizeof(tape.events) == full


def test_events_have_time_device_bytes_and_cause() -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        sched.compile(**graph_of_two_devices())(x=X)
    b = next(e.fields["split"] for e in tape.select("submit") if e.device == "gpu:1")
    transfer = [
        (e.name, e.device, e.fields.get("way"), e.fields.get("bytes"))
        for e in tape.events
        if e.name in ("copy", "wait") and e.fields["needed_by"] == b
    ]
    assert transfer == [
        ("wait", "gpu:0", None, None),
        ("copy", "gpu:0", "out", X.nbytes),
        ("copy", "gpu:1", "in", X.nbytes),
    ]
    (plan,) = tape.select("plan")
    assert plan.fields["cause"] == "compile" and plan.fields["devices"] == ["gpu:0", "gpu:1"]
    memory = {e.device: e.fields for e in tape.select("prepare")}
    assert memory["gpu:0"]["weight_bytes"] == X.nbytes + ALIGN_BYTES  # and the constant 0.5
    assert memory["gpu:1"]["bytes"] > 0
    assert [e.device for e in tape.select("release")] == ["gpu:0", "gpu:1"]
    assert all(e.end_s >= e.start_s for e in tape.events)


def test_a_fallback_is_an_event_with_its_reason() -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched, pytest.warns(vs.VkschedWarning):
        sched.compile(vs.cast(vs.input("x", (64,)), "float64"))
    (found,) = tape.select("fallback")
    assert found.device == "cpu" and "float64" in str(found.fields["cause"])


def test_a_run_has_the_tape_of_its_own_graph(tmp_path: Path) -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=[lambda _: None, tape]) as sched:
        run = sched.compile(**graph_of_two_devices())
        other = sched.compile(vs.exp(vs.input("x", (4,))))
        double = sched.function(lambda x: x * 2.0)
        run(x=X)
        for size in (4, 5):
            other(x=np.ones(4, np.float32))
            double(x=np.ones(size, np.float32))
        assert [len(each.trace.select("run")) for each in (run, other, double)] == [1, 2, 2]
        assert len(double.trace.select("plan")) == 2
        run.trace.save(tmp_path / "t.json")
    assert len(vs.load_tape(tmp_path / "t.json").plans) == 1
    with vs.Scheduler(null_devices()) as sched:
        run = sched.compile(vs.exp(vs.input("x", (4,))))
        with pytest.raises(vs.PlanError, match="a scheduler with a tape, got one without; try"):
            _ = run.trace


def test_a_tape_keeps_no_weights_alive() -> None:
    tape = vs.Tape()
    array = np.ones((8, 8), np.float32)
    gone = weakref.ref(array)
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        sched.compile(vs.input("x", X.shape) @ vs.weight(array))(x=X)
    del array, sched
    gc.collect()
    assert gone() is None and tape.select("plan")


def test_plans_are_bounded_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tapes, "PLANS", 3)
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        double = sched.function(lambda x: x * 2.0)
        for size in range(1, 9):
            double(x=np.ones(size, np.float32))
    assert tape.dropped_plans == 5
    tape.save(tmp_path / "t.json")
    saved = vs.load_tape(tmp_path / "t.json")
    assert len(saved.plans) == len(saved.graphs) == 3 and saved.dropped_plans == 5
    assert {e.plan for e in saved.events if e.name == "run"} == {-1, 0, 1, 2}


def test_the_same_graph_is_written_once_for_all_its_plans(tmp_path: Path) -> None:
    tape, weight = vs.Tape(), vs.weight(X)
    for policy in ("auto", "priority"):
        with vs.Scheduler(null_devices(), policy, trace=tape) as sched:
            sched.compile(vs.input("x", X.shape) @ weight)(x=X)
    tape.save(tmp_path / "t.json")
    saved = vs.load_tape(tmp_path / "t.json")
    assert (len(saved.plans), len(saved.graphs)) == (2, 1)


def test_threads_share_a_tape(tmp_path: Path) -> None:
    tape = vs.Tape(limit=5_000)
    begin = threading.Barrier(8)

    def work(thread: int) -> None:
        begin.wait()
        for number in range(2_000):
            tape(event(thread * 10_000 + number))
            if number % 500 == 0:
                tape.select("submit")
                tape.save(tmp_path / f"{thread}.json")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tape.events) == 5_000 and tape.dropped == 11_000
    for thread in range(8):
        mine = [e.run for e in tape.events if e.run // 10_000 == thread]
        assert mine == sorted(mine)
        assert json.loads((tmp_path / f"{thread}.json").read_text("utf-8"))["vksched"]["events"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_write_on_a_tape_whose_lock_was_held() -> None:
    tape = vs.Tape()
    with tape._lock:
        child = os.fork()
        if child == 0:
            tape(event(1))
            os._exit(len(tape.events))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VkschedError, match="cannot write .*: No such file"):
        vs.Tape().save(tmp_path / "nowhere" / "t.json")


def test_values_that_json_lacks_are_written_all_the_same(tmp_path: Path) -> None:
    tape = vs.Tape()
    fields = {
        "inf": float("inf"), "nan": np.float32("nan"), "set": {1}, "array": np.arange(2),
        "text": "\ud800 \u2028", 3: object,
    }  # fmt: skip
    tape(vs.Event("tune", "gpu:0", 0.0, 1.0, fields=fields))  # type: ignore[arg-type]
    tape.save(tmp_path / "t.json")
    (found,) = vs.load_tape(tmp_path / "t.json").events
    assert found.fields["inf"] == {"float": "inf"} and found.fields["nan"] == {"float": "nan"}
    assert found.fields["set"] == [1]
