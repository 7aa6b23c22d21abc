"""Runs that decide while they go, carried out: numpy's results on all devices, faults, threads."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import THOROUGH
from graphs import A, B, numpy_outputs
from test_drift import X, branches
from test_random_graphs import REAL, SIMULATED, run_one

import vksched as vs
from vksched.common.errors import DeviceError, IndexOutOfRange
from vksched.plan.dynamic.options import DynamicPlan
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device, Times
from vksched.runtime.executors.dynamic_executor import DynamicExecutor
from vksched.runtime.simulated.fault_injection import KINDS
from vksched.runtime.simulated.simulated_device import SimulatedPreparedPlan
from vksched.runtime.simulated.throttled_device import ThrottledDevice, ThrottledPreparedPlan
from vksched.topology.device_spec import DeviceSpec

POLICIES = ("earliest-finish", "work-stealing")
GRAPHS = 30 if THOROUGH else 8


def null_devices(clock: vs.SimulatedClock, *speeds: float) -> list[Device]:
    return [
        vs.SimulatedDevice(
            DeviceSpec(f"null:{i}", "null", flops_per_s=s, bytes_per_s=s, submit_s=1e-5), clock
        )
        for i, s in enumerate(speeds)
    ]


@pytest.fixture(scope="module")
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.scales
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("devices", list(SIMULATED))
def test_random_graphs_on_simulated_devices(
    devices: str, policy: str, callers: ThreadPoolExecutor
) -> None:
    first = 200 + list(SIMULATED).index(devices)
    with vs.Scheduler(SIMULATED[devices](1), policy=policy) as sched:
        for number in range(GRAPHS):
            run_one(sched, (first, number), False, callers)


@pytest.mark.scales
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("devices", list(REAL))
def test_random_graphs_on_real_devices(
    devices: str, policy: str, callers: ThreadPoolExecutor
) -> None:
    first = 300 + list(REAL).index(devices)
    with vs.Scheduler([*REAL[devices], "cpu"], policy=policy) as sched:
        for number in range(GRAPHS // 5):
            run_one(sched, (first, number), True, callers)


@pytest.mark.parametrize("policy", POLICIES)
def test_branches_on_each_set_of_devices(devices: list[str], policy: str) -> None:
    with vs.Scheduler(devices, policy=policy, optimize=False) as sched:
        run = sched.compile(branches())
        wanted = numpy_outputs(run.plan.graph, {"x": X})[0]
        for _ in range(3):
            assert np.allclose(run(x=X), wanted, rtol=1e-4)
        assert isinstance(run.plan, DynamicPlan) and run.stats is not None
        assert sum(s.nodes for s in run.stats.splits) == len(run.plan.graph.ops)
        assert run.report().run.measured_s == run.stats.seconds


@pytest.mark.parametrize("policy", POLICIES)
def test_the_plan_of_a_run_says_what_it_did(policy: str) -> None:
    clock, seen = vs.SimulatedClock(), vs.Recorder()
    devices = null_devices(clock, 1e9, 1e9)
    trace = vs.Trace(clock, [seen])
    with vs.Scheduler(devices, trace=trace, policy=policy, optimize=False) as sched:
        run = sched.compile(branches())
        run(x=X)
        before = [s.device for s in run.plan.splits]
        assert set(before) == {0, 1}
        assert isinstance(devices[0], vs.SimulatedDevice)
        devices[0].slowdown = 8.0
        for _ in range(6):
            run(x=X)
        now = [s.device for s in run.plan.splits]
        assert now.count(0) < before.count(0)
        splits = [e for e in seen.select("split") if e.run == 6]
        assert [e.device for e in splits].count(A) == now.count(0)
        assert {e.name for e in seen.events} >= {"run", "split", "copy", "wait"}
        assert run.stats is not None and run.stats.transfer_bytes == run.plan.transfer_bytes


@pytest.mark.parametrize("policy", POLICIES)
def test_a_slow_device_does_not_change_the_pace_of_another_one(policy: str) -> None:
    clock = vs.SimulatedClock()
    slow, steady = null_devices(clock, 4e9, 1e9)
    assert isinstance(slow, vs.SimulatedDevice)
    with vs.Scheduler(
        [slow, steady], trace=vs.Trace(clock), policy=policy, optimize=False, timeout_s=1e6
    ) as sched:
        run = sched.compile(branches(8))
        slow.slowdown = 6.0
        together = 0
        for _ in range(20):
            run(x=X)
            together += {split.device for split in run.plan.splits} == {0, 1}
        assert together >= 3
        later = sched.compile(branches(count=2)).plan
        assert later.topology.devices[1].costs.pace("matmul") in (None, 1.0)


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("pause", [1, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_that_paused_is_used_again(policy: str, pause: int, count: int) -> None:
    clock = vs.SimulatedClock()
    paused, steady = null_devices(clock, 1e9, 7e8)
    assert isinstance(paused, vs.SimulatedDevice)
    options = {"trace": vs.Trace(clock), "optimize": False, "timeout_s": 1e6}
    with vs.Scheduler([paused, steady], policy=policy, **options) as sched:  # type: ignore[arg-type]
        run = sched.compile(branches(count))
        took = list[float]()
        for number in range(60):
            paused.slowdown = 20.0 if 20 <= number < 20 + pause else 1.0
            start_s = clock.now()
            run(x=X)
            took.append(clock.now() - start_s)
        assert took[20] > 3 * took[19]
        assert max(took[-20:]) <= 1.01 * took[19]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_that_stays_slow_is_probed_in_few_runs(policy: str) -> None:
    clock = vs.SimulatedClock()
    slow, steady = null_devices(clock, 1e9, 7e8)
    assert isinstance(slow, vs.SimulatedDevice)
    options = {"trace": vs.Trace(clock), "optimize": False, "timeout_s": 1e6}
    with vs.Scheduler([slow, steady], policy=policy, **options) as sched:  # type: ignore[arg-type]
        run = sched.compile(branches(1))
        slow.slowdown = 8.0
        used = list[bool]()
        for _ in range(150):
            run(x=X)
            used.append(0 in {split.device for split in run.plan.splits})
        assert 2 <= sum(used[10:]) <= 4


# -- faults ----------------------------------------------------------------------------------------


def calibration_samples(run: vs.CompiledGraph) -> object:
    return numpy_outputs(run.plan.graph, {"x": X})[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_a_device_that_fails_leaves_the_others_working(kind: str, at: int, policy: str) -> None:
    clock = vs.SimulatedClock()
    first, second = null_devices(clock, 1e9, 1e9)
    faulty = vs.FaultInjectionDevice(first, at=at, kind=kind)
    with vs.Scheduler(
        [faulty, second], trace=vs.Trace(clock), policy=policy, optimize=False
    ) as sched:
        run = sched.compile(branches(16, 4))
        with pytest.warns(vs.VkschedWarning, match=f"{A} failed"):
            result = run(x=X)
        assert np.array_equal(result, calibration_samples(run))
        if kind != "memory":
            assert set(sched.failed_devices) == {A}
            assert {s.device for s in run.plan.splits} == {1}
        assert np.array_equal(run(x=X), calibration_samples(run))


@pytest.mark.parametrize("call", ["stage", "wait", "check", "fetch"])
def test_loss_is_found_at_every_call(call: str) -> None:
    clock = vs.SimulatedClock()
    first, second = null_devices(clock, 1e9, 1e9)
    faulty = vs.FaultInjectionDevice(first, at=1, call=call)
    with vs.Scheduler([faulty, second], policy="earliest-finish", optimize=False) as sched:
        run = sched.compile(branches(16, 4) if call == "stage" else branches())
        with pytest.warns(vs.VkschedWarning, match=f"{A} failed in piece"):
            assert np.array_equal(run(x=X), calibration_samples(run))


def test_raise_gives_the_error_to_the_caller() -> None:
    clock = vs.SimulatedClock()
    first, second = null_devices(clock, 1e9, 1e9)
    faulty = vs.FaultInjectionDevice(first, at=3)
    with vs.Scheduler(
        [faulty, second], policy="earliest-finish", on_device_failure="raise"
    ) as sched:
        run = sched.compile(branches(16, 4))
        with pytest.raises(DeviceError, match="injected"):
            run(x=X)


def test_a_real_device_that_fails_leaves_the_others_working(two_devices: list[str]) -> None:
    slower, faster = two_devices  # which gets pieces, however few the slower one gets
    faulty = vs.FaultInjectionDevice(faster, at=5)
    with vs.Scheduler([faulty, slower], policy="earliest-finish", optimize=False) as sched:
        run = sched.compile(branches())
        with pytest.warns(vs.VkschedWarning, match="failed in piece"):
            for _ in range(8):
                assert np.allclose(run(x=X), calibration_samples(run), rtol=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_bad_index_fails_one_run_and_no_device(devices: list[str], policy: str) -> None:
    x, at = vs.input("x", (6, 4)), vs.input("at", (3,), "int32")
    y = vs.add(vs.gather(vs.exp(x), at), 1.0)
    with vs.Scheduler(devices, policy=policy) as sched:
        run = sched.compile(y)
        values = np.ones((6, 4), np.float32)
        for _ in range(2):
            with pytest.raises(IndexOutOfRange):
                run(x=values, at=np.array([0, 9, 1], np.int32))
            assert run(x=values, at=np.array([0, 5, 1], np.int32)).shape == (3, 4)  # type: ignore[union-attr]
        assert not sched.failed_devices


# -- callers ---------------------------------------------------------------------------------------


def test_threads_take_turns(callers: ThreadPoolExecutor) -> None:
    clock = vs.SimulatedClock()
    with vs.Scheduler(null_devices(clock, 1e9, 9e8), policy="earliest-finish") as sched:
        run = sched.compile(branches())
        wanted = calibration_samples(run)
        futures = [run.submit(x=X) for _ in range(9)]
        futures += [callers.submit(run, x=X) for _ in range(9)]  # type: ignore[arg-type]
        for future in futures:
            assert np.allclose(future.result(), wanted, rtol=1e-5)


def test_outputs_that_nothing_computes_and_views_come_back() -> None:
    x = vs.input("x", (4, 6))
    w = vs.weight(np.arange(4, dtype=np.float32), name="w")
    y = vs.exp(x, name="y")
    outputs: list[vs.Tensor] = [x, w, y, y[1:3], vs.reshape(y, (24,)), y]
    clock = vs.SimulatedClock()
    with vs.Scheduler(null_devices(clock, 1e9), policy="work-stealing", optimize=False) as sched:
        run = sched.compile(outputs)
        values = np.random.default_rng(1).random((4, 6), np.float32)
        results = run(x=values)
        assert isinstance(results, tuple)
        for got, wanted in zip(results, numpy_outputs(run.plan.graph, {"x": values}), strict=True):
            assert np.array_equal(got, wanted)


def test_memory_that_is_short_for_a_moment_is_planned_again() -> None:
    clock = vs.SimulatedClock()
    faulty = vs.FaultInjectionDevice(
        null_devices(clock, 1e9)[0], at=0, kind="memory", call="prepare", times=1
    )
    with vs.Scheduler([faulty], policy="earliest-finish") as sched:
        with pytest.warns(vs.VkschedWarning, match="out of memory|no memory left"):
            run = sched.compile(branches())
        assert np.allclose(run(x=X), calibration_samples(run), rtol=1e-5)
        assert A in {run.plan.topology.devices[s.device].name for s in run.plan.splits}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("at", [1, 2, 3, 5, 8])
def test_an_interrupt_before_a_submission_waits_for_those_before_it(
    at: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = vs.SimulatedClock()
    devices = null_devices(clock, 1e9, 1e9)
    under_way: dict[SimulatedPreparedPlan, set[int]] = {}
    left, submit, wait = [10**6], SimulatedPreparedPlan.submit, SimulatedPreparedPlan.wait

    def interrupted(
        self: SimulatedPreparedPlan, slot: int, split: int, sequence_number: int
    ) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        submit(self, slot, split, sequence_number)
        under_way.setdefault(self, set()).add(split)

    def spied(self: SimulatedPreparedPlan, slot: int, split: int, timeout_s: float) -> None:
        wait(self, slot, split, timeout_s)
        values = under_way.get(self, set())
        if split in values:  # else its end was seen in the run before, and says nothing of this one
            end_s = self._intervals[slot][split][1]
            values -= {each for each in values if self._intervals[slot][each][1] <= end_s}

    monkeypatch.setattr(SimulatedPreparedPlan, "submit", interrupted)
    monkeypatch.setattr(SimulatedPreparedPlan, "wait", spied)
    with vs.Scheduler(
        devices, trace=vs.Trace(clock), policy=policy, optimize=False, timeout_s=1e6
    ) as sched:
        run = sched.compile(branches())
        wanted = calibration_samples(run)
        assert np.array_equal(run(x=X), wanted)
        left[0] = at
        with pytest.raises(KeyboardInterrupt):
            run(x=X)
        assert not any(under_way.values())
        left[0] = 10**6
        assert np.array_equal(run(x=X), wanted)


# -- a slowed wrapper ------------------------------------------------------------------------------


def share(run: vs.CompiledGraph, name: str) -> float:
    """The part of a run's pieces that a device took."""
    splits = run.plan.splits
    return sum(run.plan.topology.devices[s.device].name == name for s in splits) / len(splits)


def test_the_cpu_cannot_be_slowed() -> None:
    for cpu in ("cpu", CpuDevice(DeviceSpec("cpu", "cpu"))):
        with pytest.raises(
            DeviceError, match=r"\[ThrottledDevice\] expected .* other than the cpu"
        ):
            ThrottledDevice(cpu)


@pytest.mark.parametrize("times", [0, 0.5, -4.0, math.nan, math.inf, "4", None])
def test_a_slowdown_is_a_number_of_at_least_1(times: float) -> None:
    (device,) = null_devices(vs.SimulatedClock(), 1e9)
    with pytest.raises(DeviceError, match="expected a slowdown of at least 1, got"):
        ThrottledDevice(device, slowdown=times)
    slowed = ThrottledDevice(device)
    with pytest.raises(DeviceError, match="expected a slowdown of at least 1, got"):
        slowed.slowdown = times
    assert slowed.slowdown == 1.0


class EndedSession:
    """A prepared plan all of whose splits have ended; each took so many seconds."""

    def __init__(self, *taken_s: float) -> None:
        self._taken_s = taken_s

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        pass

    def ends_s(self, slot: int, split: int) -> float:
        return -math.inf

    def times_s(self, slot: int, split: int) -> Times:
        return self._taken_s[split], self._taken_s[split]


@pytest.mark.parametrize("slowdown", [1.0, 4.0])
def test_a_slowed_device_does_not_wait_until_the_host_asks(slowdown: float) -> None:
    device = ThrottledDevice(null_devices(vs.SimulatedClock(), 1e9)[0], slowdown)
    prepared = ThrottledPreparedPlan(device, EndedSession(0.0, 0.0, 100.0))  # type: ignore[arg-type]
    before_s = time.perf_counter()
    for split in range(3):
        prepared.submit(0, split, 1)
    after_s = time.perf_counter()
    assert prepared.ends_s(0, 2) is None  # only now does the host ask for any of them
    assert before_s + 100 * slowdown <= device.free_s <= after_s + 100 * slowdown


def test_work_moves_off_a_real_device_that_is_slowed(two_devices: list[str]) -> None:
    slowed = ThrottledDevice(two_devices[0])
    built: Callable[[], vs.Tensor] = lambda: branches(6, 3)  # noqa: E731
    with vs.Scheduler([slowed, two_devices[1]], policy="earliest-finish", optimize=False) as sched:
        run = sched.compile(built())
        wanted = calibration_samples(run)
        executor = run._compiled._executor
        assert isinstance(executor, DynamicExecutor)
        for _ in range(4):
            assert np.allclose(run(x=X), wanted, rtol=1e-4)
        before = executor.speeds.of(0)
        slowed.slowdown = 50.0
        for _ in range(6):
            assert np.allclose(run(x=X), wanted, rtol=1e-4)
        assert executor.speeds.of(0) > 4 * before or share(run, slowed.name) < 0.2


def test_no_warning_where_nothing_is_wrong() -> None:
    clock = vs.SimulatedClock()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with vs.Scheduler(null_devices(clock, 1e9, 1e9), policy="work-stealing") as sched:
            run = sched.compile(branches())
            run(x=X)
            assert share(run, A) + share(run, B) == 1.0
