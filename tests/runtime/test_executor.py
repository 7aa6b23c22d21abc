"""Planning and executing without Vulkan: null devices on a simulated clock, which are stricter than
hardware.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.ir.tensor import Tensor
from vksched.runtime.device import Device
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.executors.plan_executor import PlanExecutor
from vksched.topology.device_spec import DeviceSpec


def null_devices(count: int, **spec: float) -> tuple[vs.SimulatedClock, list[Device]]:
    clock = vs.SimulatedClock()
    specs = [DeviceSpec(f"null:{i}", "null", **spec) for i in range(count)]  # type: ignore[arg-type]
    return clock, [vs.SimulatedDevice(s, clock) for s in specs]


def scheduler(count: int = 2, copies: int = 1, **spec: float) -> tuple[vs.Scheduler, vs.Recorder]:
    clock, devices = null_devices(count, **spec)
    recorder = vs.Recorder()
    trace = vs.Trace(clock, [recorder])
    return vs.Scheduler(devices, copies=copies, trace=trace), recorder


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def stepped(x: Tensor, *names: str) -> list[Tensor]:
    """A chain of one op per name."""
    out = [x]
    for name in names:
        out.append(vs.add(out[-1], 1.0, name=name))
    return out[1:]


def test_chain_on_one_device_is_one_submission_and_one_fence() -> None:
    with scheduler()[0] as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a", "b", "c")[-1])
        assert np.array_equal(run(x=X), X + 3)
        assert run.stats is not None
        assert len(run.stats.splits) == run.stats.fence_waits == 1
        assert run.stats.transfer_bytes == 0


def test_chain_over_two_devices_waits_once_per_crossing_and_once_for_the_caller() -> None:
    with scheduler()[0] as sched:
        last = stepped(vs.input("x", X.shape), "a", "b", "c")[-1]
        run = sched.compile(last, placement={"a": "null:0", "b": "null:1", "c": "null:0"})
        assert np.array_equal(run(x=X), X + 3)
        assert run.stats is not None
        assert [s.device for s in run.stats.splits] == ["null:0", "null:1", "null:0"]
        assert run.stats.fence_waits == 3
        assert run.stats.transfer_bytes == 2 * X.nbytes


def test_a_run_keeps_what_the_host_did_and_when_devices_worked(tmp_path: Path) -> None:
    sched, recorder = scheduler(bytes_per_s=100.0, submit_s=0.0)  # x, 1.0 and a
    with sched:
        last = stepped(vs.input("x", X.shape), "a", "b")[-1]
        run = sched.compile(last, placement={"a": "null:0", "b": "null:1"})
        run(x=X)
        run(x=X)  # times are of the scheduler's clock, whichever run it is
    stats = run.stats
    assert stats is not None and stats.start_s > 2.0
    assert stats.end_s == pytest.approx(stats.start_s + stats.seconds)
    first, second = stats.splits
    assert first.end_s - first.begin_s == pytest.approx(1.0) == pytest.approx(first.device_s)
    assert second.begin_s >= first.end_s
    kinds = [(kind, split) for kind, split, _, _ in stats.spans]
    assert kinds == [
        *(("copy", 0), ("wait", 0), ("copy", 0)),  # x in, a out
        *(("copy", 1), ("wait", 1), ("copy", 1)),  # a in, b out
    ]
    moments = [at for _, _, start, end in stats.spans for at in (start, end)]
    assert moments == sorted(moments) and moments[-1] <= stats.end_s
    recorder.save(str(tmp_path / "trace.json"))
    events = vs.load_tape(tmp_path / "trace.json").events
    assert [e.device for e in events if e.name == "split"] == ["null:0", "null:1"] * 2
    reported = [e.fields["stats"] for e in events if e.name == "run"][-1]
    assert isinstance(reported, dict) and reported["seconds"] == stats.seconds
    moved = [(e.name, e.fields["split"]) for e in events if e.name in ("copy", "wait")]
    assert moved[6:] == kinds


def test_diamond_over_two_devices_waits_twice_and_overlaps() -> None:
    sched, recorder = scheduler(bytes_per_s=1e6)
    with sched:
        x = vs.input("x", X.shape)
        left, right = vs.mul(x, 2.0, name="left"), vs.mul(x, 3.0, name="right")
        run = sched.compile(
            vs.add(left, right, name="join"),
            placement={"left": "null:0", "right": "null:1", "join": "null:0"},
        )
        assert np.array_equal(run(x=X), X * 5)
        assert run.stats is not None and run.stats.fence_waits == 2
        first, second, _ = recorder.select("split")
        assert first.device != second.device
        assert max(first.start_s, second.start_s) < min(first.end_s, second.end_s)


def test_fan_out_copies_once_per_device_however_many_readers() -> None:
    with scheduler()[0] as sched:
        x = vs.input("x", X.shape)
        a = vs.mul(x, 2.0, name="a")
        readers = [vs.add(a, float(i), name=f"r{i}") for i in range(5)]
        placement = {"a": "null:0", **{f"r{i}": "null:1" for i in range(5)}}
        run = sched.compile(readers, placement=placement)
        for i, result in enumerate(run(x=X)):
            assert np.array_equal(result, X * 2 + i)
        assert run.stats is not None
        assert run.stats.transfer_bytes == X.nbytes
        assert run.stats.fence_waits == 2


def test_cpu_split_runs_next_to_a_device() -> None:
    with scheduler()[0] as sched:
        x = vs.input("x", X.shape)
        on_cpu, on_null = vs.exp(x, name="on_cpu"), vs.mul(x, 2.0, name="on_null")
        run = sched.compile(
            vs.add(on_cpu, on_null, name="join"),
            placement={"on_cpu": "cpu", "on_null": "null:0", "join": "null:0"},
        )
        np.testing.assert_allclose(run(x=X), np.exp(X) + 2 * X, rtol=1e-6)
        assert run.stats is not None
        assert (run.stats.waits, run.stats.fence_waits) == (2, 1)


def test_a_slow_device_does_not_hold_back_others() -> None:
    clock = vs.SimulatedClock()
    seconds = {"slow": 10.0, "a": 1.0, "b": 1.0, "c": 1.0}
    devices = [
        vs.SimulatedDevice(DeviceSpec(name, "null", submit_s=s), clock)
        for name, s in seconds.items()
    ]
    with vs.Scheduler(devices, trace=vs.Trace(clock), timeout_s=1e3) as sched:
        x = vs.input("x", X.shape)
        late = stepped(x, "s0", "s1")[-1]
        others = stepped(x, "z0", "z1", "z2", "z3", "z4", "z5")[-1]
        placement = {"s0": "slow", "s1": "a"}
        placement |= {f"z{i}": "b" if i % 2 == 0 else "c" for i in range(6)}
        run = sched.compile([late, others], placement=placement)
        run(x=X)
        assert run.stats is not None and 11 <= run.stats.seconds < 11.1


def test_a_missing_wait_is_caught_by_the_null_device() -> None:
    _, devices = null_devices(2)
    sched = vs.Scheduler(devices)
    last = stepped(vs.input("x", X.shape), "a", "b")[-1]
    run = sched.compile(last, placement={"a": "null:0", "b": "null:1"})
    splits = tuple(dataclasses.replace(s, waits=()) for s in run.plan.splits)
    broken = dataclasses.replace(run.plan, splits=splits)
    executor = PlanExecutor(broken, ExecutorContext(sched.devices, vs.Trace(), 1.0))
    with pytest.raises(vs.PlanError, match="before its split was waited for"):
        executor.run({0: X})
    executor.close()
    sched.close()


def test_many_runs_under_way_give_each_its_own_result() -> None:
    sched, _ = scheduler(copies=3)
    with sched:
        last = stepped(vs.input("x", X.shape), "a", "b", "c")[-1]
        run = sched.compile(last, placement={"a": "null:0", "b": "null:1", "c": "cpu"})
        futures = [run.submit(x=X * i) for i in range(40)]
        for i, future in enumerate(futures):
            assert np.array_equal(future.result(timeout=60), X * i + 3)


def test_submit_takes_a_copy_of_its_inputs() -> None:
    with scheduler()[0] as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        mine = X.copy()
        future = run.submit(x=mine)
        mine[:] = -1
        assert np.array_equal(future.result(timeout=60), X + 1)


def test_results_stay_when_the_graph_runs_again() -> None:
    with scheduler()[0] as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        first = run(x=X)
        run(x=X * 7)
        assert np.array_equal(first, X + 1)


def test_timeout_names_the_split() -> None:
    _, devices = null_devices(1, submit_s=100.0)
    with vs.Scheduler(devices, timeout_s=1.0, on_device_failure="raise") as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        with pytest.raises(vs.DeviceTimeout, match="split 0"):
            run(x=X)


def test_bad_inputs_are_named() -> None:
    with scheduler()[0] as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        with pytest.raises(vs.GraphError, match=r"expected inputs \['x'\], got \['y'\]"):
            run(y=X)
        with pytest.raises(vs.GraphError, match="got \\[\\]"):
            run()
        with pytest.raises(vs.ShapeError, match=r"\(3, 4\) for input 'x', got \(4, 3\)"):
            run(x=X.T)
        with pytest.raises(vs.DTypeError, match="float32 for input 'x', got float64"):
            run(x=X.astype(np.float64))
        assert np.array_equal(run(x=X.tolist()), X + 1)


def test_outputs_keep_the_form_in_which_they_were_passed() -> None:
    with scheduler()[0] as sched:
        x = vs.input("x", X.shape)
        y = vs.add(x, 1.0)
        assert isinstance(sched.compile(y)(x=X), np.ndarray)
        pair = sched.compile([y, x])(x=X)
        assert isinstance(pair, tuple) and np.array_equal(pair[1], X)
        named = sched.compile({"up": y, "same": vs.reshape(x, (4, 3))})(x=X)
        assert list(named) == ["up", "same"]
        assert np.array_equal(named["same"], X.reshape(4, 3))


def test_views_of_outputs_weights_and_inputs() -> None:
    with scheduler()[0] as sched:
        x, w = vs.input("x", X.shape), vs.weight(X * 2, name="w")
        y = vs.add(vs.reshape(x, (12,)), vs.reshape(w, (12,)))
        flat, back, weight = sched.compile([y, vs.reshape(y, (2, 6)), vs.reshape(w, (6, 2))])(x=X)
        assert np.array_equal(flat, (X * 3).ravel())
        assert np.array_equal(back, (X * 3).reshape(2, 6))
        assert np.array_equal(weight, (X * 2).reshape(6, 2))


def test_closed_is_closed() -> None:
    sched, _ = scheduler()
    run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
    run.close()
    run.close()
    with pytest.raises(vs.PlanError, match="closed"):
        run(x=X)
    sched.close()
    sched.close()
    with pytest.raises(vs.DeviceError, match="closed"):
        sched.compile(vs.add(vs.input("x", (1,)), 1.0))


@pytest.mark.parametrize("several", [False, True])
def test_a_sink_or_a_list_of_them_is_taken_as_a_trace(several: bool) -> None:
    recorder, devices = vs.Recorder(), null_devices(1)[1]
    with vs.Scheduler(devices, trace=[recorder] if several else recorder) as sched:
        sched.compile(stepped(vs.input("x", X.shape), "a")[-1])(x=X)
    assert len(recorder.select("run")) == 1


@pytest.mark.parametrize("wrong", ["trace.json", [None], 3])
def test_what_is_no_sink_is_refused(wrong: Any) -> None:
    with pytest.raises(vs.PlanError, match="expected a vs.Trace, a sink or a list of sinks, got"):
        vs.Scheduler(["cpu"], trace=wrong)


def test_trace_sink_that_raises_is_dropped_with_a_warning() -> None:
    def bad(event: vs.Event) -> None:
        raise ValueError("no")

    _, devices = null_devices(1)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        sched.trace.add(bad)
        with pytest.warns(vs.VkschedWarning, match="sink failed"):
            assert np.array_equal(run(x=X), X + 1)
