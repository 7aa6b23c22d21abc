"""States that two things happen to at once: a run and a fault of another graph, a run and an
interrupt, a write that ends halfway or late. An update counts or is said to be lost.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from test_closing import LIMIT_S, in_threads, joined
from test_executor import X, null_devices

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.engine.state_table import StateTable
from vksched.ir.graph import Graph
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import Split
from vksched.runtime.cpu import evaluate
from vksched.runtime.cpu.cpu_device import CpuPreparedPlan
from vksched.runtime.device import Device
from vksched.runtime.simulated import simulated_device
from vksched.runtime.simulated.simulated_device import SimulatedPreparedPlan
from vksched.runtime.state_store import CpuStates
from vksched.topology.device_spec import DeviceSpec
from vksched.trace import Event

BACKUP = pytest.mark.parametrize("backup", [True, False])
ZERO = np.zeros(3, np.float32)


def fragile(**fault: object) -> vs.FaultInjectionDevice:
    """A null device that fails once a test sets `at`."""
    return vs.FaultInjectionDevice(null_devices(1)[1][0], at=None, **fault)  # type: ignore[arg-type]


def fail_next(device: vs.FaultInjectionDevice) -> None:
    device.at = device.calls["submit"]


def ignore(name: str, value: NDArray) -> None:
    """An observer, whose run writes states after it has its results."""


@contextmanager
def counting(
    device: Device, backup: bool, trace: vs.Trace | None = None, late: bool = False
) -> Iterator[tuple[vs.Scheduler, vs.CompiledGraph, vs.Tensor]]:
    """A run on a device that returns minus what a state holds, and adds one to it."""
    held = vs.state(ZERO, name="held", backup=backup)
    with warnings.catch_warnings(), vs.Scheduler([device], trace=trace) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        place, minus = {"held": device.name}, vs.neg(held)
        observe = {minus: ignore} if late else None
        yield sched, sched.compile(minus, place, updates={held: held + 1.0}, observe=observe), held


class TightSession(SimulatedPreparedPlan):
    """Has no memory for submissions that write states, once its device is full."""

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        device = self._device
        assert isinstance(device, TightDevice)
        if device.full and self._plan.splits[split] in self._plan.commits:
            raise vs.OutOfMemory("[submit] no memory")
        super().submit(slot, split, sequence_number)


class TightDevice(vs.SimulatedDevice):
    full = False

    def prepare(
        self, plan: Plan, index: int, progress: Progress | None = None
    ) -> SimulatedPreparedPlan:
        return TightSession(self, plan, index)


class HookedStates(CpuStates):
    """Calls a function before a value is written."""

    before: Callable[[object, NDArray], None] | None = None

    def write(self, key: object, array: NDArray) -> None:
        if self.before is not None:
            self.before(key, array)
        super().write(key, array)


def test_memory_that_lacks_for_the_repair_too_leaves_no_old_value() -> None:
    """The device keeps the old value, and everything else there works: it must not be asked."""
    device = TightDevice(DeviceSpec("null:0", "null"), vs.SimulatedClock())
    device.states = states = HookedStates()

    def before(key: object, array: NDArray) -> None:
        if device.full:
            raise vs.OutOfMemory("[upload] no memory for staging")

    states.before = before
    with counting(device, backup=True, late=True) as (sched, run, held):
        run()
        device.full = True
        assert np.array_equal(run(), ZERO - 1)
        device.full = False
        assert np.array_equal(sched.read(held), ZERO + 2) and "null:0" in sched.failed_devices
        assert np.array_equal(run(), ZERO - 2) and np.array_equal(sched.read(held), ZERO + 3)


def test_a_write_that_ends_halfway_leaves_no_value() -> None:
    device = vs.SimulatedDevice(DeviceSpec("null:0", "null"), vs.SimulatedClock())
    device.states = states = HookedStates()

    def torn(key: object, array: NDArray) -> None:
        states.view(key)[:1] = array[:1]
        raise vs.DeviceTimeout("[wait] the second piece of the upload did not end")

    with counting(device, backup=True) as (sched, run, held):
        run()
        states.before = torn
        with pytest.raises(vs.DeviceTimeout):
            sched.write(held, ZERO + 50)
        states.before = None
        for attempt in (run, lambda: sched.read(held)):
            with pytest.raises(vs.StateLost, match="not completed"):
                attempt()
        sched.write(held, ZERO + 50)
        assert np.array_equal(run(), ZERO - 50)


@BACKUP
def test_an_interrupt_after_the_states_were_written_loses_no_update(backup: bool) -> None:
    """Ctrl-C while a sink is told of the run; then the device dies, and the copy is needed."""
    armed = threading.Event()

    def sink(event: Event) -> None:
        if event.name == "run" and armed.is_set():
            armed.clear()
            raise KeyboardInterrupt

    device = fragile(kind="lost")
    with counting(device, backup, vs.Trace(sinks=[sink])) as (sched, run, held):
        armed.set()
        with pytest.raises(KeyboardInterrupt):
            run()
        assert np.array_equal(sched.read(held), ZERO + 1)
        fail_next(device)
        if backup:
            assert np.array_equal(run(), ZERO - 1) and np.array_equal(sched.read(held), ZERO + 2)
        else:
            with pytest.raises(vs.StateLost, match="lived on null:0"):
                run()


@BACKUP
def test_a_device_that_another_graph_finds_dead_during_a_run(backup: bool) -> None:
    device = fragile(kind="sequence", times=1)
    held = vs.state(ZERO, name="held", backup=backup)
    grown = vs.add(held, 1.0, name="grown")
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        other = sched.compile(vs.mul(vs.input("x", X.shape), 2.0, name="m"), {"m": "null:0"})

        def watch(name: str, value: NDArray) -> None:
            if device.at is None:
                fail_next(device)
                assert np.array_equal(other(x=X), X * 2) and "null:0" in sched.failed_devices
                if backup:
                    sched.compile(held * 2.0)  # puts the state, as it was, on the cpu

        place = dict.fromkeys(("held", "grown", "out"), "null:0")
        out = vs.neg(grown, name="out")
        run = sched.compile(out, place, updates={held: grown}, observe={grown: watch})
        assert np.array_equal(run(), ZERO - 1)
        if backup:
            assert np.array_equal(sched.read(held), ZERO + 1)
            assert np.array_equal(run(), ZERO - 2) and np.array_equal(sched.read(held), ZERO + 2)
        else:
            for attempt in (run, lambda: sched.read(held)):
                with pytest.raises(vs.StateLost, match="null:0 failed"):
                    attempt()


def test_a_run_that_waits_for_its_turn_finds_its_device_out_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = fragile(kind="sequence", times=1)
    one, two = vs.state(ZERO, "one", backup=True), vs.state(ZERO, "two", backup=True)
    grown = vs.add(one, 1.0, name="grown")
    first_is_inside, second_waits, go = (threading.Event() for _ in range(3))
    original = StateTable.running

    def running(self: StateTable, graph: Graph) -> object:
        if first_is_inside.is_set():
            second_waits.set()
        return original(self, graph)

    def watch(name: str, value: NDArray) -> None:
        first_is_inside.set()
        assert go.wait(LIMIT_S)

    monkeypatch.setattr(StateTable, "running", running)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        place = dict.fromkeys(("one", "grown", "out"), "cpu")
        out = vs.neg(grown, name="out")
        first = sched.compile(out, place, updates={one: grown}, observe={grown: watch})
        second = sched.compile(vs.neg(two), {"two": "null:0"}, updates={two: two + 1.0})
        other = sched.compile(vs.mul(vs.input("x", X.shape), 2.0, name="m"), {"m": "null:0"})
        try:
            ends = [first.submit()]
            assert first_is_inside.wait(LIMIT_S)
            ends.append(second.submit())
            assert second_waits.wait(LIMIT_S)
            fail_next(device)
            other(x=X)
            asked = device.calls["submit"]
            third = sched.compile(vs.mul(two, 1.0, name="third"))  # puts the state on the cpu
        finally:
            go.set()
        for end, expected in zip(ends, (ZERO - 1, ZERO), strict=True):
            assert np.array_equal(end.result(LIMIT_S), expected)
        assert np.array_equal(sched.read(two), ZERO + 1)
        assert np.array_equal(third(), ZERO + 1) and np.array_equal(second(), ZERO - 1)
        assert device.calls["submit"] == asked


def test_a_state_is_not_put_where_a_device_failed_since_the_plan_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, original = fragile(kind="sequence", times=1), StateTable.place
    held = vs.state(ZERO, name="held", backup=True)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        other = sched.compile(vs.mul(vs.input("x", X.shape), 2.0, name="m"), {"m": "null:0"})

        def place(self: StateTable, *args: object) -> None:
            if device.at is None:
                fail_next(device)
                other(x=X)
            original(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(StateTable, "place", place)
        run = sched.compile(vs.neg(held), {"held": "null:0"}, updates={held: held + 1.0})
        assert "null:0" in sched.failed_devices and not device.states.holds(held)
        assert np.array_equal(run(), ZERO) and np.array_equal(sched.read(held), ZERO + 1)


def test_a_late_write_of_the_cpu_does_not_change_what_was_written_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    armed, begun, go, ended = (threading.Event() for _ in range(4))
    wait, compute = CpuPreparedPlan.wait, CpuPreparedPlan._run

    def slow(self: CpuPreparedPlan, slot: int, split: int, *rest: Any) -> float:
        late = armed.is_set() and self._plan.splits[split] in self._plan.commits
        if late:
            begun.set()
            assert go.wait(LIMIT_S)
        took = compute(self, slot, split, *rest)
        if late:
            ended.set()
        return took

    def impatient(self: CpuPreparedPlan, slot: int, split: int, timeout_s: float) -> None:
        if armed.is_set() and self._plan.splits[split] in self._plan.commits:
            assert begun.wait(LIMIT_S)
            timeout_s = 0.0
        wait(self, slot, split, timeout_s)

    monkeypatch.setattr(CpuPreparedPlan, "_run", slow)
    monkeypatch.setattr(CpuPreparedPlan, "wait", impatient)
    held = vs.state(ZERO, name="held", backup=False)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.neg(held), updates={held: held + 1.0})
        run()
        armed.set()
        try:
            with pytest.raises(vs.DeviceTimeout):
                run()
            with pytest.raises(vs.StateLost):
                sched.read(held)
            sched.write(held, ZERO + 50)
        finally:
            go.set()
        assert ended.wait(LIMIT_S)
        armed.clear()
        assert np.array_equal(sched.read(held), ZERO + 50)
        assert np.array_equal(run(), ZERO - 50)


def test_what_a_run_writes_late_does_not_bring_a_removed_state_back() -> None:
    states = CpuStates()
    states.add([("held", ZERO), ("kept", ZERO)])
    states.remove("held")
    for late in (
        lambda: states.write("held", ZERO),
        lambda: states.replace([("kept", ZERO + 1), ("held", ZERO)]),
        lambda: states.change("held", lambda array: None),
        lambda: states.view("held"),
    ):
        with pytest.raises(vs.DeviceLost, match="failed meanwhile"):
            late()
    assert states.keys() == ("kept",) and np.array_equal(states.read("kept"), ZERO)


@BACKUP
def test_a_device_found_dead_while_a_run_computes_there_stays_without_the_state(
    monkeypatch: pytest.MonkeyPatch, backup: bool
) -> None:
    """Between what the run reads of the state and what it writes, another graph's run fails."""
    device, original = fragile(kind="sequence", times=1), evaluate.run_split
    settle, seen = StateTable.finish_run, []
    with counting(device, backup, late=True) as (sched, run, held):
        place = {"held": "null:0", "m": "null:0"}
        two = sched.compile(vs.mul(held, 2.0, name="m"), place, updates={held: held + 1.0})
        other = sched.compile(vs.mul(vs.input("x", X.shape), 2.0, name="m"), {"m": "null:0"})
        run()

        def slow(plan: Plan, split: Split, *rest: object) -> None:
            original(plan, split, *rest)  # type: ignore[arg-type]
            if device.at is None and split in plan.commits:
                fail_next(device)
                assert np.array_equal(other(x=X), X * 2)
                assert "null:0" in sched.failed_devices

        def look(self: StateTable, *args: object) -> object:
            seen.append(device.states.holds(held))
            return settle(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(simulated_device, "run_split", slow)
        monkeypatch.setattr(StateTable, "finish_run", look)
        assert np.array_equal(run(), ZERO - 1)
        if backup:
            assert np.array_equal(two(), ZERO + 4) and np.array_equal(sched.read(held), ZERO + 3)
        else:
            with pytest.raises(vs.StateLost, match="null:0"):
                two()
        assert seen and not any(seen)


def test_a_state_cannot_be_dropped_between_two_generations_of_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, original, refused = fragile(kind="lost"), StateTable.place, []
    with counting(device, backup=True) as (sched, run, held):
        run()

        def place(self: StateTable, *args: object) -> None:
            try:
                sched.delete_state(held)
            except vs.PlanError as error:
                refused.append(str(error))
            original(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(StateTable, "place", place)
        fail_next(device)
        assert np.array_equal(run(), ZERO - 1) and "null:0" in sched.failed_devices
        assert len(refused) == 1 and "'held'" in refused[0]
        run.close()
        sched.delete_state(held)


def test_memory_that_comes_back_serves_the_graph_that_lacked_it() -> None:
    device = fragile(kind="memory", times=2)
    with counting(device, backup=True) as (sched, run, held):
        run()
        fail_next(device)
        with pytest.raises(vs.OutOfMemory, match="closing other graphs"):
            run()
        assert np.array_equal(sched.read(held), ZERO + 1) and not sched.failed_devices
        assert np.array_equal(run(), ZERO - 1) and np.array_equal(sched.read(held), ZERO + 2)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns far more often than they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@BACKUP
@pytest.mark.parametrize("seed", range(12))
def test_every_update_counts_or_is_reported_to_be_lost(
    restless: None, seed: int, backup: bool
) -> None:
    """Two graphs share a state, a third has none; one of all their submissions fails."""
    rng = random.Random(seed)
    device = fragile(kind=rng.choice(["sequence", "error"]), times=1)
    device.at = rng.randrange(4, 24)
    counted: list[int] = []

    def count(run: vs.CompiledGraph) -> None:
        for _ in range(4):
            run()
            counted.append(1)

    with counting(device, backup) as (sched, one, held):
        place = {"held": "null:0", "m": "null:0"}
        two = sched.compile(vs.mul(held, 2.0, name="m"), place, updates={held: held + 1.0})
        other = sched.compile(vs.mul(vs.input("x", X.shape), 2.0, name="m"), {"m": "null:0"})
        calls = [lambda: count(one), lambda: count(two)]
        calls += [lambda: [other(x=X) for _ in range(4)].clear()] * 2
        started = [in_threads(1, call) for call in calls]
        assert all(joined(threads) for threads, _ in started)
        raised = [p for _, results in started for p in results if p is not None]
        assert not raised or not backup, raised
        assert all(isinstance(p, vs.StateLost) for p in raised), raised
        try:
            assert np.array_equal(sched.read(held), ZERO + len(counted)), raised
        except vs.StateLost:
            assert not backup
