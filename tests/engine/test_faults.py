"""Devices that fail in the middle: every kind of failure at every submission, the run carried out
elsewhere, the answer that of numpy, the warning with the device's name.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_closing import LIMIT_S, in_threads, joined
from test_executor import X, null_devices, stepped
from test_random import SETTINGS, draw_graph, values
from test_scheduler import error, numpy_result

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.engine.plan_builder import PlanBuilder
from vksched.engine.request import Request
from vksched.plan.plan import Plan
from vksched.runtime.cpu.cpu_device import CpuDevice, CpuPreparedPlan
from vksched.runtime.device import Device
from vksched.runtime.simulated.fault_injection import CALLS, KINDS, FaultyPreparedPlan
from vksched.runtime.vulkan import device_handle, device_probe
from vksched.runtime.vulkan.open_device import open_device
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.topology.device_spec import DeviceSpec

Build = Callable[[Sequence[str]], tuple[vs.Tensor, dict[str, str]]]

W = np.random.default_rng(5).standard_normal((4, 4), dtype=np.float32)


# -- graphs and devices ----------------------------------------------------------------------------


def chain(names: Sequence[str]) -> tuple[vs.Tensor, dict[str, str]]:
    """One op per device and back to the first."""
    ops = [f"op{i}" for i in range(len(names) + 1)]
    last = stepped(vs.input("x", X.shape), *ops)[-1]
    return last, {op: names[i % len(names)] for i, op in enumerate(ops)}


def diamond(names: Sequence[str]) -> tuple[vs.Tensor, dict[str, str]]:
    x = vs.input("x", X.shape)
    left, right = vs.mul(x, 2.0, name="left"), vs.mul(x, 3.0, name="right")
    join = vs.add(left, right, name="join")
    return join, {"left": names[0], "right": names[-1], "join": names[0]}


def weights(names: Sequence[str]) -> tuple[vs.Tensor, dict[str, str]]:
    """Each device has a weight of its own, which pulls its op there."""
    y: vs.Tensor = vs.input("x", X.shape)
    for i, _ in enumerate(names):
        y = vs.add(y, vs.weight(W[:3] * (i + 1), name=f"w{i}"))
    return y, {f"w{i}": name for i, name in enumerate(names)}


BUILDS: dict[str, Build] = {"chain": chain, "diamond": diamond, "weights": weights}


class LeftOpen(vs.FaultInjectionDevice):
    """Leaves the wrapped device open, for the next fault."""

    def close(self) -> None:
        return None


def wrapped(devices: Sequence[Device], **faults: dict[str, Any]) -> list[LeftOpen]:
    """The devices, those named (by number: d0, d1, ...) with a fault."""
    return [LeftOpen(d, **faults.get(f"d{i}", {"at": None})) for i, d in enumerate(devices)]


@pytest.fixture(scope="module")
def opened(devices: list[str]) -> Iterator[list[Device]]:
    """Each set of Vulkan devices in turn, open; the same one again has a name of its own."""
    if devices == ["cpu"]:
        pytest.skip("no Vulkan device in this set")
    found = [open_device(device_probe.resolve(n), f"{n}#{i}") for i, n in enumerate(devices)]
    yield found
    for device in found:
        device.close()


def simulated(count: int) -> list[Device]:
    return null_devices(count)[1]


def submissions(build: Build, devices: list[Device]) -> list[int]:
    """How many submissions one run makes on each device."""
    watched = wrapped(devices)
    with vs.Scheduler(watched) as sched:
        y, placement = build([d.name for d in devices])
        sched.compile(y, placement)(x=X)
    return [device.calls["submit"] for device in watched]


def close_to(got: Any, expected: NDArray) -> None:
    assert got.shape == expected.shape and error(np.asarray(got), expected) < 1e-10


def used(run: vs.CompiledGraph) -> set[str]:
    return {run.plan.topology.devices[s.device].name for s in run.plan.splits}


def held_bytes(devices: Sequence[Device]) -> list[int]:
    """Bytes that are allocated on the devices behind these."""
    gpus = [d for d in devices if isinstance(d, VulkanDevice)]
    return [device_handle.live_bytes[d.context.index] for d in gpus]


def check_failover(build: Build, devices: list[Device], index: int, **fault: Any) -> None:
    """One failing device: right answers, a warning with its name, nothing placed there any more,
    all memory given back.
    """
    name, in_memory = devices[index].name, fault["kind"] == "memory"
    y, placement = build([d.name for d in devices])
    before = held_bytes(devices)
    with vs.Scheduler(wrapped(devices, **{f"d{index}": fault})) as sched:
        with pytest.warns(vs.VkschedWarning) as caught:
            run = sched.compile(y, placement)
            got, again = run(x=X), run(x=X * 2)
        close_to(got, numpy_result(y, X))
        close_to(again, numpy_result(y, X * 2))
        texts = [str(w.message) for w in caught]
        assert all(f"[fault] {name} failed in split" in text for text in texts)
        assert set(texts[-1].rpartition(" runs on ")[2].split(", ")) == used(run)
        assert len(texts) == (2 if in_memory else 1)
        assert name not in used(run)
        assert run.stats is not None and name not in run.stats.device_seconds
        assert name in run.plan.explain() and "out of use" in run.plan.explain()
        assert list(sched.failed_devices) == ([] if in_memory else [name])
        later = sched.compile(vs.neg(y), placement)
        assert (name in used(later)) == in_memory
    assert held_bytes(devices) == before


# -- every kind, every submission ------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", list(BUILDS))
def test_every_kind_at_every_submission(graph: str, kind: str, count: int) -> None:
    build = BUILDS[graph]
    for index, built in enumerate(submissions(build, simulated(count))):
        for at in range(built):
            check_failover(build, simulated(count), index, kind=kind, at=at)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", list(BUILDS))
def test_every_kind_at_every_submission_on_vulkan(
    opened: list[Device], graph: str, kind: str
) -> None:
    build = BUILDS[graph]
    for index, built in enumerate(submissions(build, opened)):
        for at in range(built):
            check_failover(build, opened, index, kind=kind, at=at)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "states"])
def test_loss_is_found_at_every_call(call: str) -> None:
    y, placement = chain(["null:0", "null:1"])
    watched = wrapped(simulated(2))
    with vs.Scheduler(watched) as sched:
        sched.compile(y, placement)(x=X)
    for at in range(watched[0].calls[call]):
        fault = {"at": at, "kind": "lost", "call": call}
        with vs.Scheduler(wrapped(simulated(2), d0=fault)) as sched:
            with pytest.warns(vs.VkschedWarning, match=r"null:0 failed in .* is lost \(injected\)"):
                run = sched.compile(y, placement)
                close_to(run(x=X), X + 3)
            assert used(run) <= {"null:1", "cpu"} and list(sched.failed_devices) == ["null:0"]


def test_two_devices_die_one_after_the_other_down_to_numpy() -> None:
    y, placement = chain(["null:0", "null:1"])
    first, second = submissions(chain, simulated(2))
    for a in range(first):
        for b in range(second + 1):  # the last one in the replay
            faults = {"d0": {"at": a}, "d1": {"at": b, "kind": "sequence"}}
            with vs.Scheduler(wrapped(simulated(2), **faults)) as sched:
                run = sched.compile(y, placement)
                with pytest.warns(vs.VkschedWarning) as caught:
                    for _ in range(3):
                        close_to(run(x=X), X + 3)
                assert len(caught) == 2 and used(run) == {"cpu"}
                assert sorted(sched.failed_devices) == ["null:0", "null:1"]


def test_all_vulkan_devices_die_down_to_numpy(opened: list[Device]) -> None:
    faults = {f"d{i}": {"at": i + 1} for i in range(len(opened))}
    y, placement = weights([d.name for d in opened])
    before = held_bytes(opened)
    with vs.Scheduler(wrapped(opened, **faults)) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning) as caught:
            for i in range(len(opened) + 3):
                close_to(run(x=X * i), numpy_result(y, X * i))
        assert len(caught) == len(opened) and used(run) == {"cpu"}
        assert all(name in sched.failed_devices for name in placement.values())
        run.close()
        assert held_bytes(opened) == before


# -- runs under way --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost", "timeout", "sequence", "memory"])
@pytest.mark.parametrize("at", range(0, 12, 3))
def test_all_runs_under_way_fail_over_once(kind: str, at: int) -> None:
    y, placement = chain(["null:0", "null:1"])
    devices = wrapped(simulated(2), d1={"at": at, "kind": kind})
    with vs.Scheduler(devices, copies=3) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning) as caught:
            futures = [run.submit(x=X * i) for i in range(12)]
            runners, results = in_threads(4, lambda: run(x=X))
            assert joined(runners)
            for i, future in enumerate(futures):
                close_to(future.result(LIMIT_S), X * i + 3)
        assert len(results) == 4
        for result in results:
            close_to(result, X + 3)
        generations = 3 if kind == "memory" else 2
        assert len(caught) == generations - 1
        assert devices[0].calls["prepare"] == generations


def test_runs_under_way_on_vulkan_fail_over(opened: list[Device]) -> None:
    y, placement = weights([d.name for d in opened])
    before = held_bytes(opened)
    with vs.Scheduler(wrapped(opened, d0={"at": 5}), copies=2) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning, match=opened[0].name) as caught:
            futures = [run.submit(x=X * i) for i in range(8)]
            runners, results = in_threads(3, lambda: run(x=X))
            assert joined(runners) and len(results) == 3
            for i, future in enumerate(futures):
                close_to(future.result(LIMIT_S), numpy_result(y, X * i))
        assert len(caught) == 1
    assert held_bytes(opened) == before


def test_accepted_runs_are_carried_out_when_the_device_dies_while_closing() -> None:
    y, placement = chain(["null:0", "null:1"])
    gate = threading.Event()
    devices = wrapped(simulated(2), d0={"at": 3})
    clock = vs.Trace(sinks=[lambda event: gate.wait(LIMIT_S) and None])
    sched = vs.Scheduler(devices, copies=1, trace=clock)
    gate.set()
    run = sched.compile(y, placement)
    gate.clear()  # only runs wait for it
    futures = [run.submit(x=X * i) for i in range(5)]
    with pytest.warns(vs.VkschedWarning, match="null:0"):
        closers, _ = in_threads(2, sched.close)
        gate.set()
        assert joined(closers)
    for i, future in enumerate(futures):
        close_to(future.result(0), X * i + 3)


def test_a_warning_as_an_error_breaks_no_run() -> None:
    y, placement = chain(["null:0"])
    with vs.Scheduler(wrapped(simulated(1), d0={"at": 0})) as sched:
        run = sched.compile(y, placement)
        close_to(run.submit(x=X).result(LIMIT_S), X + 2)
        assert list(sched.failed_devices) == ["null:0"]


# -- what is left of the scheduler -----------------------------------------------------------------


def test_other_graphs_move_off_a_failed_device_without_a_word() -> None:
    y, placement = chain(["null:0", "null:1"])
    devices = wrapped(simulated(2), d0={"at": 2})
    with vs.Scheduler(devices) as sched:
        first, second = sched.compile(y, placement), sched.compile(vs.neg(y), placement)
        close_to(first(x=X), X + 3)
        with pytest.warns(vs.VkschedWarning) as caught:
            close_to(first(x=X), X + 3)
        close_to(second(x=X), -X - 3)
        assert len(caught) == 1 and "null:0" not in used(second)
        third = sched.compile(vs.exp(y), placement)
        assert "null:0" not in used(third)
        assert "op0: override: op0 on null:0, which cannot: it is out of use" in str(third.plan)
        with pytest.raises(vs.DeviceError, match="null:9"):
            sched.compile(y, {"op0": "null:9"})


def test_a_failure_that_nested_runs_meet_is_reported_once() -> None:
    y, placement = chain(["null:0", "null:1"])
    inner: list[Any] = []

    def start_another(event: vs.Event) -> None:
        # while the outer run has begun and not submitted yet
        if event.name == "copy" and not inner:
            inner.append(None)
            inner.append(first(x=X))

    trace = vs.Trace(sinks=[start_another])
    with vs.Scheduler(wrapped(simulated(2), d0={"at": 0}), trace=trace) as sched:
        second = sched.compile(y, placement)
        first = sched.compile(vs.neg(y), placement)
        with pytest.warns(vs.VkschedWarning) as caught:
            close_to(second(x=X * 2), X * 2 + 3)
        close_to(inner[1], -X - 3)
        assert len(caught) == 1


def test_the_warning_of_a_fault_is_at_the_line_of_the_caller() -> None:
    y, placement = chain(["null:0"])
    with vs.Scheduler(wrapped(simulated(1), d0={"at": 0})) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning, match="null:0 failed") as caught:
            run(x=X)
    assert caught[0].filename == __file__


def test_in_a_worker_the_warning_of_a_fault_is_at_a_line_of_the_package() -> None:
    y, placement = chain(["null:0"])
    with vs.Scheduler(wrapped(simulated(1), d0={"at": 0})) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning, match="null:0 failed") as caught:
            run.submit(x=X).result(LIMIT_S)
    assert caught[0].filename.endswith("executor_generations.py")


@pytest.mark.parametrize("submitted", [False, True])
def test_where_warnings_are_errors_a_fault_is_logged(
    caplog: pytest.LogCaptureFixture, submitted: bool
) -> None:
    y, placement = chain(["null:0"])
    with warnings.catch_warnings(), vs.Scheduler(wrapped(simulated(1), d0={"at": 0})) as sched:
        warnings.simplefilter("error")
        run = sched.compile(y, placement)
        close_to(run.submit(x=X).result(LIMIT_S) if submitted else run(x=X), X + 2)
    (record,) = caplog.records
    assert record.name == "vksched" and record.levelname == "WARNING"
    assert "null:0 failed in split 0" in record.getMessage()


def test_where_nothing_is_left_the_error_tells_of_the_fault() -> None:
    y, placement = chain(["null:0"])
    cpu = CpuDevice(DeviceSpec("cpu", "cpu", memory_bytes=4))
    with vs.Scheduler([*wrapped(simulated(1), d0={"at": 1}), cpu]) as sched:
        run = sched.compile(y, placement)
        close_to(run(x=X), X + 2)
        with pytest.warns(vs.VkschedWarning, match="null:0 failed.*nothing can take its place"):
            with pytest.raises(vs.OutOfMemory, match="only the CPU can run") as caught:
                run(x=X)
        assert isinstance(caught.value.__cause__, vs.DeviceLost)
        with pytest.raises(vs.OutOfMemory):
            run(x=X)


def test_an_error_without_a_fault_keeps_what_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        try:
            raise KeyError("where it began")
        except KeyError:
            raise vs.PlanError("[plan] what came of it")  # noqa: B904, as code of others may

    monkeypatch.setattr(PlanBuilder, "executor", fail)
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.PlanError) as caught:
        sched.compile(vs.relu(vs.input("x", X.shape)))
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__


def test_weight_retained_on_a_dead_device_goes_elsewhere_with_a_note() -> None:
    y, placement = weights(["null:0", "null:1"])
    with vs.Scheduler(wrapped(simulated(2), d0={"at": 0, "call": "prepare"})) as sched:
        with pytest.warns(vs.VkschedWarning, match="null:0 failed in preparing"):
            run = sched.compile(y, placement)
        assert any("w0 on null:0 has no effect" in note for note in run.plan.notes)
        close_to(run(x=X), numpy_result(y, X))


def test_statistics_and_trace_tell_of_the_fault() -> None:
    recorder = vs.Recorder()
    y, placement = chain(["null:0"])
    devices = wrapped(simulated(1), d0={"at": 0})
    with vs.Scheduler(devices, trace=vs.Trace(sinks=[recorder]), optimize=False) as sched:
        run = sched.compile(y, placement)
        run.submit(x=X).result(LIMIT_S)
    (fault,) = recorder.select("fault")
    assert fault.device == "null:0" and fault.fields["error"] == "DeviceLost"
    assert fault.fields["during"] == "split 0 (op0 .. op1, 2 nodes)"
    assert len(recorder.select("run")) == 1


def test_what_may_still_be_worked_on_is_freed_last() -> None:
    y, placement = chain(["null:0", "null:1"])
    devices = wrapped(simulated(2), d0={"at": 0, "kind": "timeout"})
    closed: list[str] = []

    class PreparedPlan:
        """Notes when it is closed."""

        def __init__(self, inner: Any, name: str) -> None:
            self.inner, self.name = inner, name

        def __getattr__(self, what: str) -> Any:
            return getattr(self.inner, what)

        def close(self) -> None:
            closed.append(self.name)
            self.inner.close()

    for device in devices:
        prepare = device.prepare
        device.prepare = lambda *a, p=prepare, d=device: PreparedPlan(p(*a), d.name)  # type: ignore[misc,method-assign]
    with vs.Scheduler(devices) as sched:
        run = sched.compile(y, placement)
        with pytest.warns(vs.VkschedWarning, match="DeviceTimeout|does not end"):
            close_to(run(x=X), X + 3)
        assert closed == ["null:1"]
        close_to(run(x=X * 2), X * 2 + 3)
        assert closed == ["null:1"]
        run.close()
        assert sorted(closed) == ["null:0", "null:1", "null:1"]


class Impatient(LeftOpen):
    """Gives up on a submission at once, while it is still under way."""

    def prepare(
        self, plan: Plan, index: int, progress: Progress | None = None
    ) -> FaultyPreparedPlan:
        prepared = super().prepare(plan, index, progress)
        wait = prepared.wait
        prepared.wait = lambda slot, split, timeout_s: wait(slot, split, 0.0)  # type: ignore[method-assign]
        return prepared


def test_results_that_come_late_are_not_taken_for_those_of_the_replay(opened: list[Device]) -> None:
    x = vs.input("x", (256, 256))
    y = x
    for i in range(8):
        y = vs.matmul(y, x, name=f"step{i}") * 0.01
    arrays = [np.eye(256, dtype=np.float32) * (100 + i) for i in range(3)]
    before = held_bytes(opened)
    with vs.Scheduler([Impatient(opened[0], at=None)], copies=2) as sched:
        run = sched.compile(y)
        with pytest.warns(vs.VkschedWarning, match="DeviceTimeout|expected an end in time"):
            futures = [run.submit(x=array) for array in arrays]
            for array, future in zip(arrays, futures, strict=True):
                close_to(future.result(60), numpy_result(y, array))
        assert sched.failed_devices[opened[0].name].startswith("DeviceTimeout")
    assert held_bytes(opened) == before


# -- memory ----------------------------------------------------------------------------------------


def test_memory_that_is_short_for_a_moment_makes_a_smaller_plan_on_the_same_device() -> None:
    y, placement = chain(["null:0", "null:1"])
    fault = {"at": 0, "kind": "memory", "call": "prepare", "times": 1}
    with vs.Scheduler(wrapped(simulated(2), d0=fault), copies=3) as sched:
        with pytest.warns(vs.VkschedWarning, match="null:0.*what is free now and one copy"):
            run = sched.compile(y, placement)
        assert run.plan.copies == 1 and "copies: 1 on each device" in run.plan.explain()
        assert used(run) == {"null:0", "null:1"} and not sched.failed_devices
        close_to(run(x=X), X + 3)
        assert sched.compile(vs.neg(y), placement).plan.copies == 3
        run.close()  # and with it the memory of what happened
        assert sched.compile(y, placement).plan.copies == 3


def test_the_smaller_plan_is_not_retained_for_a_later_program() -> None:
    y, _ = chain(["null:0"])
    fault = {"at": 0, "kind": "memory", "call": "prepare", "times": 1}
    with vs.Scheduler(wrapped(simulated(1), d0=fault)) as sched:
        with pytest.warns(vs.VkschedWarning, match="null:0.*what is free now and one copy"):
            run = sched.compile(y)
        serializer = sched._preparing.serializer
        plan = run.plan
        assert "copies: 1 on each device" in plan.explain()
        assert serializer(plan, Request(plan.graph, (), {}))() is None
        run.close()
        again = sched.compile(y)
        assert serializer(again.plan, Request(again.plan.graph, (), {}))() is not None


def test_the_smaller_plan_is_built_for_what_is_free_then() -> None:
    class Shrinking(vs.FaultInjectionDevice):
        @property
        def spec(self) -> DeviceSpec:
            room = 256 if self.failed else 1 << 20
            return DeviceSpec("null:0", "null", memory_bytes=room)

    device = Shrinking(simulated(1)[0], 0, "memory", "prepare", times=1)
    x = vs.input("x", X.shape)
    y = vs.add(vs.exp(vs.add(x, 1.0, name="small")), vs.weight(np.ones((900, 3, 4), np.float32)))
    with vs.Scheduler([device]) as sched:
        with pytest.warns(vs.VkschedWarning, match="null:0, cpu|on cpu"):
            run = sched.compile(y)
        assert "null:0 is full" in run.plan.explain()
        close_to(run(x=X), numpy_result(y, X))


# -- what is no device's fault, and who wants to know ----------------------------------------------


def test_errors_of_the_caller_quarantine_nothing() -> None:
    x, ids = vs.input("x", X.shape), vs.input("ids", (2,), "int32")
    y = vs.gather(vs.add(x, 1.0), ids)
    with vs.Scheduler(wrapped(simulated(1))) as sched:
        run = sched.compile(y, {"*": "null:0"})
        with pytest.raises(vs.IndexOutOfRange):
            run(x=X, ids=np.array([0, 7], np.int32))
        with pytest.raises(vs.ShapeError):
            run(x=X.T, ids=np.array([0, 1], np.int32))
        assert not sched.failed_devices
        close_to(run(x=X, ids=np.array([0, 1], np.int32)), X[:2] + 1)


def test_failure_of_the_cpu_goes_to_the_caller_and_the_graph_lives_on() -> None:
    class Late(CpuPreparedPlan):
        late = True

        def wait(self, slot: int, split: int, timeout_s: float) -> None:
            super().wait(slot, split, timeout_s)
            if Late.late:
                Late.late = False
                raise vs.DeviceTimeout("[wait] too late")

    class Cpu(CpuDevice):
        def prepare(
            self, plan: Plan, index: int, progress: Progress | None = None
        ) -> CpuPreparedPlan:
            return Late(plan, index, self._worker, self._workers, self.states, self._compute_lock)

    with vs.Scheduler([*simulated(1), Cpu(DeviceSpec("cpu", "cpu"))]) as sched:
        y, placement = chain(["null:0", "cpu"])
        run = sched.compile(y, placement)
        with pytest.raises(vs.DeviceTimeout, match="too late") as caught:
            run(x=X)
        assert caught.value.device == "cpu" and caught.value.during == "split 1 (op1)"
        assert not sched.failed_devices
        close_to(run(x=X), X + 3)


@pytest.mark.parametrize("kind", KINDS)
def test_raise_gives_the_error_to_the_caller(kind: str) -> None:
    y, placement = chain(["null:0", "null:1"])
    devices = wrapped(simulated(2), d1={"at": 1, "kind": kind, "times": 1})
    with vs.Scheduler(devices, on_device_failure="raise") as sched:
        run, other = sched.compile(y, placement), sched.compile(vs.neg(vs.input("x", X.shape)))
        close_to(run(x=X), X + 3)
        with pytest.raises(vs.DeviceError) as caught:
            run(x=X)
        assert (caught.value.device, caught.value.during) == ("null:1", "split 1 (op1)")
        if kind == "memory":  # it comes back
            close_to(run(x=X), X + 3)
            assert run.plan.copies == 2
        else:
            for call in (lambda: run(x=X), lambda: sched.compile(vs.neg(y), placement)):
                with pytest.raises(vs.DeviceError, match="null:1 failed earlier: Device"):
                    call()
        close_to(other(x=X), -X)  # it needs no other plan
    with pytest.raises(vs.PlanError, match="on_device_failure"):
        vs.Scheduler(["cpu"], on_device_failure="ignore")


def test_bad_faults_are_refused() -> None:
    with pytest.raises(vs.DeviceError, match="kind of lost"):
        vs.FaultInjectionDevice(simulated(1)[0], 0, "smoke")
    with pytest.raises(vs.DeviceError, match='call="submit"'):
        vs.FaultInjectionDevice(simulated(1)[0], 0, "sequence", "fetch")
    for at in ("timeout", -1, 0.5, float("nan")):
        with pytest.raises(vs.DeviceError, match="whole number of 0 or more, or None, as at, got"):
            vs.FaultInjectionDevice(simulated(1)[0], at)  # type: ignore[arg-type]
        with pytest.raises(vs.DeviceError, match="or None, as times, got"):
            vs.FaultInjectionDevice(simulated(1)[0], 0, times=at)  # type: ignore[arg-type]
    works = vs.FaultInjectionDevice(simulated(1)[0], None)
    with pytest.raises(vs.DeviceError, match="as at, got 'now'"):
        works.at = "now"  # type: ignore[assignment]
    assert works.at is None
    for cpu in ("cpu", CpuDevice(DeviceSpec("cpu", "cpu"))):
        with pytest.raises(vs.DeviceError, match="other than the cpu"):
            vs.FaultInjectionDevice(cpu, 0)


@pytest.mark.parametrize("times", [0, -1, float("nan"), float("inf"), "x", None])
def test_a_null_device_is_slowed_by_a_number_above_0(times: float) -> None:
    spec = DeviceSpec("null:0", "null")
    with pytest.raises(vs.DeviceError, match="expected a slowdown above 0, got"):
        vs.SimulatedDevice(spec, vs.SimulatedClock(), slowdown=times)
    device = vs.SimulatedDevice(spec, vs.SimulatedClock(), slowdown=0.5)
    with pytest.raises(vs.DeviceError, match="expected a slowdown above 0, got"):
        device.slowdown = times
    assert device.slowdown == 0.5


# -- drawn -----------------------------------------------------------------------------------------


@SETTINGS
@given(st.data())
def test_any_graph_with_any_faults_equals_numpy(data: st.DataObject) -> None:
    outputs, inputs = draw_graph(data, "float32")
    count, copies = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    faults = {
        f"d{i}": {"at": data.draw(st.integers(0, 9)), "kind": data.draw(st.sampled_from(KINDS))}
        for i in range(count)
        if data.draw(st.booleans())
    }
    graph, _ = vs.build_graph(outputs)
    names = [f"null:{i}" for i in range(count)] + ["cpu"]
    placement = {
        n.name: data.draw(st.sampled_from(names)) for n in graph.ops if n.id not in graph.views
    }
    feeds = {n.name: values((8, 12), i) for i, n in enumerate(graph.inputs)}
    with vs.Scheduler(wrapped(simulated(count), **faults), copies=copies) as sched:
        run = sched.compile(outputs, placement)
        results = [f.result(LIMIT_S) for f in [run.submit(**feeds) for _ in range(4)]]
        if sched.failed_devices:
            assert not used(run) & sched.failed_devices.keys()
    with vs.Scheduler(["cpu"]) as numpy:
        expected = numpy.compile(outputs)(**feeds)
    for result in results:
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_three_graphs_from_four_threads_on_failing_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    faults = {
        f"d{i}": {"at": int(rng.integers(12)), "kind": KINDS[rng.integers(len(KINDS))]}
        for i in range(3)
        if rng.random() < 0.8
    }
    y, placement = chain([f"null:{i}" for i in range(3)])
    with warnings.catch_warnings(), vs.Scheduler(wrapped(simulated(3), **faults)) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)  # how many depends on the drawn faults
        runs = [sched.compile(out, placement) for out in (y, vs.neg(y), vs.mul(y, 2.0))]

        def work() -> bool:
            for i in range(6):
                run, factor = runs[i % 3], (1, -1, 2)[i % 3]
                got = run(x=X * i) if i % 2 else run.submit(x=X * i).result(LIMIT_S)
                close_to(got, factor * (X * i + 4))
            return True

        threads, results = in_threads(4, work)
        assert joined(threads) and results == [True] * 4
