"""Closing, failing and many threads at once: no run hangs, none sees another's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_executor import X, stepped

import vksched as vs
from vksched.common.dtypes import Progress
from vksched.plan.plan import Plan
from vksched.runtime.device import PreparedPlan
from vksched.runtime.executors.base_executor import INTERRUPTED_S
from vksched.runtime.simulated.simulated_device import SimulatedPreparedPlan
from vksched.topology.device_spec import DeviceSpec

LIMIT_S = 30.0


class GatedSession(SimulatedPreparedPlan):
    """Waits for a gate before the end of a split is seen."""

    gate: threading.Event
    waiting: threading.Semaphore
    limits: list[float]
    close_error: BaseException | None = None
    drops: bool = False
    interrupts: int = 0
    interrupts_commit: bool = False

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        if self.interrupts_commit and self._plan.splits[split] in self._plan.commits:
            self.interrupts_commit = False
            raise KeyboardInterrupt
        super().submit(slot, split, sequence_number)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        self.waiting.release()
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        self.limits.append(timeout_s)
        assert self.gate.wait(LIMIT_S)
        super().wait(slot, split, timeout_s)

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        if self.drops:
            raise vs.DeviceLost(f"[check] split {split} was dropped")
        super().check(slot, split, sequence_number)

    def close(self) -> None:
        if self.close_error is not None:
            raise self.close_error
        super().close()


class GatedDevice(vs.SimulatedDevice):
    """A null device that works for as long as the test wants."""

    def __init__(self, name: str, clock: vs.SimulatedClock) -> None:
        super().__init__(DeviceSpec(name, "null"), clock)
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.prepared_plans: list[GatedSession] = []

    def prepare(self, plan: Plan, index: int, progress: Progress | None = None) -> GatedSession:
        prepared = GatedSession(self, plan, index)
        prepared.gate, prepared.waiting = self.gate, self.waiting
        prepared.limits = []
        self.prepared_plans.append(prepared)
        return prepared


@pytest.fixture
def device() -> Iterator[GatedDevice]:
    gated = GatedDevice("null:0", vs.SimulatedClock())
    yield gated
    gated.gate.set()


def compiled(
    device: GatedDevice, on_device_failure: str = "retry"
) -> tuple[vs.Scheduler, vs.CompiledGraph]:
    sched = vs.Scheduler([device], copies=1, on_device_failure=on_device_failure)
    return sched, sched.compile(stepped(vs.input("x", X.shape), "a")[-1])


def in_threads(count: int, call: Callable[[], object]) -> tuple[list[threading.Thread], list[Any]]:
    """Call in threads of their own; the list gets what each returned or raised."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(LIMIT_S)
    return not any(thread.is_alive() for thread in threads)


def test_close_leaves_nobody_waiting_for_a_slot(device: GatedDevice) -> None:
    sched, run = compiled(device)
    runners, results = in_threads(6, lambda: run(x=X))
    assert device.waiting.acquire(timeout=LIMIT_S)
    closers, _ = in_threads(3, sched.close)
    device.gate.set()
    assert joined(runners) and joined(closers)
    done = [r for r in results if isinstance(r, np.ndarray)]
    refused = [r for r in results if isinstance(r, vs.PlanError) and "closed" in str(r)]
    assert len(done) >= 1 and len(done) + len(refused) == 6


def test_close_carries_out_what_was_accepted(device: GatedDevice) -> None:
    sched, run = compiled(device)
    futures = [run.submit(x=X * i) for i in range(6)]
    assert device.waiting.acquire(timeout=LIMIT_S)
    closers, _ = in_threads(1, sched.close)
    device.gate.set()
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(LIMIT_S), X * i + 1)
    assert joined(closers)


def test_every_closer_waits_for_the_run_under_way(device: GatedDevice) -> None:
    sched, run = compiled(device)
    runners, results = in_threads(1, lambda: run(x=X))
    assert device.waiting.acquire(timeout=LIMIT_S)
    closers, _ = in_threads(2, run.close)
    more, _ = in_threads(1, sched.close)
    assert all(thread.is_alive() for thread in (*closers, *more))
    device.gate.set()
    assert joined(runners) and joined(closers) and joined(more)
    assert np.array_equal(results[0], X + 1)


@pytest.mark.parametrize("what", ["run", "scheduler"])
def test_close_from_a_callback_cancels_what_has_not_begun(device: GatedDevice, what: str) -> None:
    sched, run = compiled(device)
    first, second = run.submit(x=X), run.submit(x=X)
    closed = threading.Event()

    def close(_: Future[Any]) -> None:
        (run if what == "run" else sched).close()
        closed.set()

    first.add_done_callback(close)
    device.gate.set()
    assert closed.wait(LIMIT_S)
    assert np.array_equal(first.result(LIMIT_S), X + 1)
    wait([second], LIMIT_S)
    with pytest.raises(CancelledError):
        second.result(0)
    sched.close()


def test_compile_from_a_callback_and_from_progress_does_not_hang(device: GatedDevice) -> None:
    sched, run = compiled(device)
    device.gate.set()
    inner: list[vs.CompiledGraph] = []
    y = stepped(vs.input("x", X.shape), "b")[-1]
    future = run.submit(x=X)
    called = threading.Event()

    def compile_again(_: object) -> None:
        inner.append(sched.compile(y))
        called.set()

    future.add_done_callback(compile_again)
    future.result(LIMIT_S)
    assert called.wait(LIMIT_S)  # callbacks run after those that wait for the result
    sched.compile(y, progress=lambda *_: inner.append(sched.compile(y)))
    assert np.array_equal(inner[0](x=X), X + 1)
    sched.close()


def test_runs_behind_a_failed_one_are_carried_out_elsewhere(device: GatedDevice) -> None:
    sched, run = compiled(device)
    runners, results = in_threads(3, lambda: run(x=X))
    assert device.waiting.acquire(timeout=LIMIT_S)
    device.prepared_plans[0].drops = True
    with pytest.warns(vs.VkschedWarning, match="null:0 failed") as caught:
        device.gate.set()
        assert joined(runners)
    assert all(np.array_equal(r, X + 1) for r in results) and len(results) == 3
    assert (len(caught), device.submissions) == (1, 1)
    sched.close()


def test_runs_behind_a_failed_one_say_what_failed_where_plans_may_not_change(
    device: GatedDevice,
) -> None:
    sched, run = compiled(device, on_device_failure="raise")
    runners, results = in_threads(3, lambda: run(x=X))
    assert device.waiting.acquire(timeout=LIMIT_S)
    device.prepared_plans[0].drops = True
    device.gate.set()
    assert joined(runners)
    assert sorted(type(r).__name__ for r in results) == ["DeviceError", "DeviceError", "DeviceLost"]
    assert sum("failed earlier" in str(r) for r in results) == 2
    assert {r.device for r in results} == {"null:0"}
    assert device.submissions == 1
    sched.close()


def test_what_cannot_be_closed_is_a_warning_and_the_rest_is_closed() -> None:
    clock = vs.SimulatedClock()
    devices = [GatedDevice(f"null:{i}", clock) for i in range(2)]
    sched = vs.Scheduler(devices)
    y = stepped(vs.input("x", X.shape), "a", "b")[-1]
    for _ in range(2):
        sched.compile(y, placement={"a": "null:0", "b": "null:1"})
    devices[0].prepared_plans[0].close_error = vs.DeviceTimeout("[close] null:0 does not answer")
    closed: list[str] = []
    devices[1].close = lambda: closed.append("null:1")  # type: ignore[method-assign]
    with pytest.warns(vs.VkschedWarning, match="null:0 does not answer"):
        sched.close()
    assert closed == ["null:1"]


def test_dropped_submission_is_found_before_its_data_is_used() -> None:
    clock = vs.SimulatedClock()
    device = GatedDevice("null:0", clock)
    device.gate.set()
    ids = vs.cast(vs.input("x", (3,)), "int32", name="ids")
    y = vs.gather(vs.weight(X), ids, name="rows")
    with vs.Scheduler([device], on_device_failure="raise") as sched:
        run = sched.compile(y, placement={"ids": "null:0", "rows": "cpu"})
        device.prepared_plans[0].drops = True
        with pytest.raises(vs.DeviceLost, match="dropped"):
            run(x=np.full(3, 99, np.float32))  # rows would raise IndexOutOfRange
        with pytest.raises(vs.DeviceError, match="failed earlier"):
            run(x=np.zeros(3, np.float32))


def test_ctrl_c_waits_shortly_and_the_graph_stays_usable(device: GatedDevice) -> None:
    sched, run = compiled(device)
    device.gate.set()
    prepared = device.prepared_plans[0]
    prepared.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        run(x=X)
    assert prepared.limits == [INTERRUPTED_S]
    assert np.array_equal(run(x=X), X + 1)
    sched.close()


def test_ctrl_c_twice_leaves_what_may_be_at_work_alone(device: GatedDevice) -> None:
    """Nobody knows when the device is done with that memory: the next run gets memory of its own,
    and the old is freed at the end.
    """
    sched, run = compiled(device)
    device.gate.set()
    device.prepared_plans[0].interrupts = 2
    with pytest.raises(KeyboardInterrupt):
        run(x=X)
    assert np.array_equal(run(x=X), X + 1)
    assert len(device.prepared_plans) == 2 and not sched.failed_devices
    assert device.prepared_plans[0].limits == [] and len(device.prepared_plans[1].limits) == 1
    sched.close()


class InterruptedCondition(threading.Condition):
    """An interrupt comes before it is entered, once; nobody may wait."""

    left = 0

    def __enter__(self) -> bool:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().__enter__()

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("it would wait for ever")


@pytest.mark.parametrize("policy", ["priority", "earliest-finish"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("whose", ["executor", "graph"])
def test_ctrl_c_at_any_lock_leaves_nobody_waiting(whose: str, at: int, policy: str) -> None:
    alone = vs.SimulatedDevice(DeviceSpec("null:0", "null"), vs.SimulatedClock())
    sched = vs.Scheduler([alone], policy=policy)
    run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
    owner: Any = run._compiled._executor if whose == "executor" else run._compiled
    owner._state = condition = InterruptedCondition()
    interrupted = 0
    for left in (at, 0):
        condition.left = left
        try:
            assert np.array_equal(run(x=X), X + 1)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == (whose == "executor" and at == 1)  # there is no other lock on the way
    sched.close()


@pytest.mark.parametrize("backup", [True, False])
def test_ctrl_c_before_a_device_got_its_commit_costs_neither_state_nor_device(
    device: GatedDevice, backup: bool
) -> None:
    held = vs.state(X, name="held", backup=backup)
    device.gate.set()
    with vs.Scheduler([device]) as sched:
        run = sched.compile(vs.neg(held), {"held": "null:0"}, updates={held: held + 1.0})
        run()
        device.prepared_plans[0].interrupts_commit = True
        with pytest.raises(KeyboardInterrupt):
            run()
        assert np.array_equal(sched.read(held), X + 2) and not sched.failed_devices
        assert np.array_equal(run(), -X - 2) and len(device.prepared_plans) == 1


@pytest.mark.parametrize("name", ["cpu", *vulkan_names()])
def test_ctrl_c_when_a_device_has_got_its_commit_costs_neither_state_nor_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = vs.state(X, name="held")
    left: list[int] = []

    with vs.Scheduler([name]) as sched:
        run = sched.compile(vs.neg(held), {"held": name}, updates={held: held + 1.0})
        run()
        prepared = next(iter(run._compiled._executor._prepared_plans.values()))
        prepared = getattr(prepared, "_prepared", prepared)  # behind what the tests watch
        begin = type(prepared).submit

        def submit(self: PreparedPlan, slot: int, split: int, sequence_number: int) -> None:
            begin(self, slot, split, sequence_number)
            if run.plan.splits[split] in run.plan.commits and not left:
                left.append(split)
                raise KeyboardInterrupt

        monkeypatch.setattr(type(prepared), "submit", submit)
        with pytest.raises(KeyboardInterrupt):
            run()
        assert left and not sched.failed_devices
        assert np.array_equal(sched.read(held), X + 2)
        assert np.array_equal(run(), -X - 2)


@pytest.mark.parametrize("during", ["waiting", "freeing"])
def test_a_close_that_was_interrupted_can_be_called_again(
    device: GatedDevice, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sched, run = compiled(device)
    closed: list[str] = []
    device.close = lambda: closed.append("null:0")  # type: ignore[method-assign]
    future = run.submit(x=X)
    assert device.waiting.acquire(timeout=LIMIT_S)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if during == "waiting":
            patch.setattr(run._compiled._state, "wait_for", interrupt)
        else:
            device.gate.set()
            device.prepared_plans[0].close_error = KeyboardInterrupt()
        sched.close()
    device.gate.set()
    assert np.array_equal(future.result(LIMIT_S), X + 1)
    closers, results = in_threads(2, sched.close)
    more, others = in_threads(1, run.close)
    assert joined(closers) and joined(more)
    assert (closed, results, others) == (["null:0"], [None, None], [None])


@pytest.mark.parametrize("how", ["call", "submit"])
@pytest.mark.parametrize("what", ["run", "run.close", "sched.close", "sched.synchronize"])
def test_an_observer_that_would_wait_for_itself_is_refused(
    device: GatedDevice, what: str, how: str
) -> None:
    sched = vs.Scheduler([device], copies=1)
    y = vs.add(vs.input("x", X.shape), 1.0, name="y")
    device.gate.set()

    def watch(name: str, value: object) -> None:
        calls = {"run": lambda: run(x=X), "run.close": run.close}
        {**calls, "sched.close": sched.close, "sched.synchronize": sched.synchronize}[what]()

    run = sched.compile(vs.relu(y), observe={y: watch})
    call = (lambda: run(x=X)) if how == "call" else (lambda: run.submit(x=X).result(LIMIT_S))
    threads, results = in_threads(1, call)
    assert joined(threads) and isinstance(results[0], vs.PlanError)
    assert "wait for itself" in str(results[0])
    sched.close()


def test_closed_graphs_are_forgotten(device: GatedDevice) -> None:
    sched, run = compiled(device)
    run.close()
    assert not sched.graphs.compiled and not sched.graphs.entries
    sched.close()
