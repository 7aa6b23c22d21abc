"""Many threads on one scheduler, several schedulers on one device, and nothing left behind.

Closing amid runs: tests/scheduler/test_closing.py. Forks: tests/runtime/test_fork.py.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from selection import spread
from test_closing import LIMIT_S, GatedDevice, in_threads, joined
from test_executor import X, stepped

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.plan.plan import Plan
from vksched.runtime.device import Device
from vksched.runtime.simulated.simulated_device import SimulatedPreparedPlan
from vksched.runtime.vulkan import binding, device_handle
from vksched.runtime.vulkan.context import Context
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.topology.device_spec import DeviceSpec

pytestmark = pytest.mark.one_set

THREADS = 4


def null_devices() -> list[Device]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(DeviceSpec(f"null:{i}", "null"), clock) for i in range(2)]


@pytest.fixture
def members(devices: list[str]) -> list[str | Device]:
    """The devices of a set as for a Scheduler: without Vulkan two null devices."""
    return list(null_devices()) if devices == ["cpu"] else list(devices)


def contexts(sched: vs.Scheduler) -> list[Context]:
    return [d.context for d in sched.devices if isinstance(d, VulkanDevice)]


def live_natives(sched: vs.Scheduler) -> list[tuple[int, int, int]]:
    """Per context: open buffers and pipelines, open recordings, and our count of bytes."""
    gc.collect()
    return [
        (
            sum(n._native is not None for n in c._device.natives),
            sum(r._native is not None for r in c._device.recordings),
            device_handle.live_bytes[c.index],
        )
        for c in contexts(sched)
    ]


@pytest.fixture
def frees_all() -> Iterator[None]:
    """After the test nothing more is open, in use or running than before."""
    gc.collect()
    opened = {id(d) for d in device_handle._devices if not d.closed}
    used, threads = dict(device_handle.live_bytes), set(threading.enumerate())
    yield
    gc.collect()
    assert {k: v for k, v in device_handle.live_bytes.items() if v != used.get(k, 0)} == {}
    for thread in set(threading.enumerate()) - threads:
        thread.join(LIMIT_S)  # a pool that is shut down ends its threads in its own time
    assert set(threading.enumerate()) <= threads
    assert {id(d) for d in device_handle._devices if not d.closed} <= opened
    assert all(d.manager is None for d in device_handle._devices if d.closed)


def graph(k: float, w: vs.Tensor) -> vs.Tensor:
    return vs.input("x", X.shape) * w + k


def reference(k: float, w: vs.Tensor, x: NDArray) -> NDArray:
    assert w.data is not None
    return np.asarray(x * w.data + np.float32(k))


# -- one scheduler, many threads -------------------------------------------------------------------


@pytest.mark.usefixtures("frees_all")
def test_threads_compile_run_submit_and_close_on_one_scheduler(members: list[str | Device]) -> None:
    w = vs.weight(np.full(4, 2, np.float32), name="w")
    start = threading.Barrier(THREADS)
    with vs.Scheduler(members, copies=2) as sched:
        last = sched.devices[len(sched.devices) - 2].name if len(sched.devices) > 1 else "cpu"
        shared = sched.compile(graph(1, w))
        numbers = iter(range(THREADS))

        def work() -> bool:
            k = next(numbers)
            start.wait(LIMIT_S)
            for turn in range(2):
                run = sched.compile(graph(k, w), placement={"w": last} if turn else None)
                futures = [run.submit(x=X * i) for i in range(2)]
                futures += [shared.submit(x=X * i) for i in range(2)]
                wanted = [reference(c, w, X * i) for c in (k, 1) for i in range(2)]
                if not np.array_equal(run(x=X), reference(k, w, X)):
                    return False
                if not np.array_equal(shared(x=X), reference(1, w, X)):
                    return False
                got = [f.result(LIMIT_S) for f in futures]
                if not all(np.array_equal(g, v) for g, v in zip(got, wanted, strict=True)):
                    return False
                run.close()
            return True

        threads, results = in_threads(THREADS, work)
        assert joined(threads)
        assert results == [True] * THREADS
        assert np.array_equal(shared(x=X), reference(1, w, X))


@pytest.mark.usefixtures("frees_all")
def test_every_update_of_a_state_counts_however_many_threads_run(devices: list[str]) -> None:
    count = vs.state(np.zeros(3, np.float32), name="count")
    with vs.Scheduler(devices, copies=3) as sched:
        run = sched.compile(count + 1.0, updates={count: count + vs.input("by", (3,))})
        by = np.arange(3, dtype=np.float32)

        def work() -> None:
            for future in [run.submit(by=by) for _ in range(3)]:
                future.result(LIMIT_S)
            run(by=by)

        threads, results = in_threads(THREADS, work)
        assert joined(threads)
        assert results == [None] * THREADS
        assert np.array_equal(sched.read(count), 4 * THREADS * by)


@pytest.mark.usefixtures("frees_all")
def test_compiling_while_another_thread_closes(members: list[str | Device]) -> None:
    w = vs.weight(np.ones(4, np.float32), name="w")
    sched = vs.Scheduler(members)
    first = threading.Event()

    def work() -> int:
        done = 0
        try:
            while True:
                run = sched.compile(graph(done, w))
                assert np.array_equal(run(x=X), reference(done, w, X))
                done += 1
                first.set()
        except (vs.DeviceError, vs.PlanError) as error:
            assert "closed" in str(error), error
        return done

    threads, results = in_threads(3, work)
    assert first.wait(LIMIT_S)
    sched.close()
    assert joined(threads)
    assert all(isinstance(r, int) for r in results) and sum(results) > 0, results


@pytest.mark.usefixtures("frees_all")
def test_closing_with_runs_in_flight_gives_their_results_and_then_the_memory(
    members: list[str | Device],
) -> None:
    w = vs.weight(np.ones(4, np.float32), name="w")
    with vs.Scheduler(members, copies=2) as sched:
        runs = [sched.compile(graph(k, w)) for k in range(2)]
        futures = [(k, run.submit(x=X)) for _ in range(3) for k, run in enumerate(runs)]
        del runs
    for k, future in futures:
        assert future.done() and np.array_equal(future.result(), reference(k, w, X))


def test_closing_one_graph_leaves_the_runs_of_another() -> None:
    device = GatedDevice("null:0", vs.SimulatedClock())
    with vs.Scheduler([device]) as sched:
        one, two = (sched.compile(stepped(vs.input("x", X.shape), n)[-1]) for n in "ab")
        future = two.submit(x=X)
        assert device.waiting.acquire(timeout=LIMIT_S)
        one.close()
        assert not future.done()
        device.gate.set()
        assert np.array_equal(future.result(LIMIT_S), X + 1)


# -- several schedulers ----------------------------------------------------------------------------


@pytest.mark.usefixtures("frees_all")
def test_schedulers_share_a_device_but_no_weights(devices: list[str]) -> None:
    w = vs.weight(np.full(4, 0.5, np.float32), name="w")
    with vs.Scheduler(devices[:1]) as one, vs.Scheduler(devices[:1]) as two:
        a = one.compile(graph(1, w))
        stores = [d.weights for s in (one, two) for d in s.devices if isinstance(d, VulkanDevice)]
        assert [bool(s.resident_bytes) for s in stores] == [True, False][: len(stores)]
        b = two.compile(graph(2, w))
        assert all(s.resident_bytes for s in stores)
        runners, results = in_threads(2, lambda: [a(x=X) for _ in range(5)])
        others, more = in_threads(2, lambda: [b(x=X) for _ in range(5)])
        assert joined(runners) and joined(others)
        for got in sum(results, []):
            assert np.array_equal(got, reference(1, w, X))
        for got in sum(more, []):
            assert np.array_equal(got, reference(2, w, X))
        pending = b.submit(x=X)
        one.close()
        assert [bool(s.resident_bytes) for s in stores] == [False, True][: len(stores)]
        assert np.array_equal(pending.result(LIMIT_S), reference(2, w, X))
        assert np.array_equal(b(x=X), reference(2, w, X))
        with pytest.raises(vs.PlanError, match="closed"):
            a(x=X)


@pytest.mark.usefixtures("frees_all")
def test_each_thread_opens_and_closes_a_scheduler_of_its_own(devices: list[str]) -> None:
    w = vs.weight(np.ones(4, np.float32), name="w")
    start = threading.Barrier(3)

    def work() -> bool:
        start.wait(LIMIT_S)
        with vs.Scheduler(devices[:1]) as sched:
            return np.array_equal(sched.compile(graph(3, w))(x=X), reference(3, w, X))

    threads, results = in_threads(3, work)
    assert joined(threads)
    assert results == [True] * 3


# -- nothing left behind ---------------------------------------------------------------------------


@pytest.mark.usefixtures("frees_all")
def test_rounds_of_compile_run_and_close_leave_nothing(devices: list[str]) -> None:
    w = vs.weight(np.ones(4, np.float32), name="w")
    y = vs.add(vs.input("x", X.shape), w, name="y")
    with vs.Scheduler(devices) as sched:
        stored = sched.compile(y)
        stored(x=X)
        before, threads = live_natives(sched), threading.active_count()
        for turn in range(50):
            where = sched.devices[turn % len(sched.devices)].name
            run = sched.compile(y, placement={"y": where})
            assert np.array_equal(run(x=X), X + 1)
            assert np.array_equal(run.submit(x=X).result(LIMIT_S), X + 1)
            run.close()
        del run
        assert live_natives(sched) == before
        assert threading.active_count() <= threads + 1  # the CPU's worker may have begun


def test_budget_is_back_after_each_with(devices: list[str]) -> None:
    w = vs.weight(np.ones((1 << 10, 1 << 9), np.float32), name="w")
    watchers = [Context(int(n.partition(":")[2]), n) for n in set(devices) - {"cpu"}]
    try:
        before = [device_handle.live_bytes[c.index] for c in watchers]
        budget = [c.free_bytes() for c in watchers]
        with vs.Scheduler(devices) as sched:
            run = sched.compile(vs.input("x", (1, 1 << 10)) @ w)
            assert run(x=np.ones((1, 1 << 10), np.float32))[0, 0] == 1 << 10
            used = [device_handle.live_bytes[c.index] for c in watchers]
            assert sum(used) - sum(before) >= (2 << 20) * bool(watchers)
        assert [device_handle.live_bytes[c.index] for c in watchers] == before
        for context, free in zip(watchers, budget, strict=True):
            if not binding.describe_devices()[context.index]["type"] == "cpu":
                # a software device's budget is the machine's memory, which all of it shares
                assert context.free_bytes() >= free - (1 << 20)
    finally:
        for context in watchers:
            context.close()


class Failing(SimulatedPreparedPlan):
    """A prepared plan that fails where it is told to."""

    fails: str = ""

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        if self.fails == "submit":
            raise vs.DeviceLost("[submit] it is lost")
        super().submit(slot, split, sequence_number)


class FailingDevice(vs.SimulatedDevice):
    """A device that fails while it prepares, or later."""

    def __init__(self, fails: str) -> None:
        super().__init__(DeviceSpec("null:0", "null"), vs.SimulatedClock())
        self.fails = fails
        self.closed = 0

    def prepare(self, plan: Plan, index: int, progress: Progress | None = None) -> Failing:
        if self.fails == "prepare":
            raise vs.OutOfMemory("[storage] null:0 is full")
        prepared = Failing(self, plan, index)
        prepared.fails = self.fails
        return prepared

    def close(self) -> None:
        self.closed += 1


class UserError(Exception):
    """What a user's own code raises."""


@pytest.mark.usefixtures("frees_all")
@pytest.mark.parametrize("fails", spread(["", "progress", "user", "index", "input"], 2))
def test_errors_inside_the_with_leave_nothing(devices: list[str], fails: str) -> None:
    w = vs.weight(np.eye(4, dtype=np.float32), name="w")
    expected: dict[str, type[Exception]] = {
        "progress": UserError,
        "user": UserError,
        "index": vs.IndexOutOfRange,
        "input": vs.ShapeError,
    }

    def progress(*_: object) -> None:
        raise UserError

    def use() -> None:
        with vs.Scheduler(devices) as sched:
            before = live_natives(sched)
            if fails == "progress":
                if devices == ["cpu"]:
                    raise UserError  # nothing is uploaded
                try:
                    sched.compile(graph(1, w[0]), progress=progress)
                finally:
                    gc.collect()
                    assert live_natives(sched) == before
            ids = vs.input("ids", (2,), "int32")
            run = sched.compile(vs.gather(w, ids))
            run(ids=np.array([0, 3], np.int32))
            if fails == "user":
                run.submit(ids=np.array([0, 3], np.int32))
                raise UserError
            if fails == "index":
                run(ids=np.array([0, 9], np.int32))
            if fails == "input":
                run(ids=np.array([0], np.int32))

    if fails:
        with pytest.raises(expected[fails]):
            use()
    else:
        use()


def test_a_device_that_cannot_prepare_or_submit_is_closed_with_the_rest() -> None:
    y = stepped(vs.input("x", X.shape), "a")[-1]
    threads = set(threading.enumerate())
    failing = FailingDevice("prepare")
    with pytest.raises(vs.OutOfMemory, match="full"):
        with vs.Scheduler([failing], on_device_failure="raise") as sched:
            sched.compile(y)
    assert failing.closed == 1
    failing = FailingDevice("submit")
    with pytest.raises(vs.DeviceLost, match="lost"):
        with vs.Scheduler([failing], on_device_failure="raise") as sched:
            sched.compile(y)(x=X)
    assert failing.closed == 1
    assert set(threading.enumerate()) <= threads


@pytest.mark.usefixtures("frees_all")
@pytest.mark.parametrize("on_device_failure", spread(["raise", "retry"], 1))
def test_out_of_memory_while_preparing_leaves_nothing(
    devices: list[str], on_device_failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if devices == ["cpu"]:
        pytest.skip("numpy prepares nothing")
    w = vs.weight(np.ones(4, np.float32), name="w")
    with vs.Scheduler(devices, copies=2, on_device_failure=on_device_failure) as sched:
        before = live_natives(sched)
        real: Callable[..., Any] = Context._allocate
        for limit in range(5):
            left = [limit]

            def allocate(*args: Any, left: list[int] = left) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise vs.OutOfMemory(f"[{args[2]}] full (injected)")
                return real(*args)

            monkeypatch.setattr(Context, "_allocate", allocate)
            if on_device_failure == "raise":
                with pytest.raises(vs.OutOfMemory, match="injected"):
                    sched.compile(graph(1, w))
            else:
                with pytest.warns(vs.VkschedWarning, match="injected"):
                    run = sched.compile(graph(1, w))
                assert np.array_equal(run(x=X), reference(1, w, X))
                assert list(run.stats.device_seconds) == ["cpu"]  # type: ignore[union-attr]
                run.close()
            assert live_natives(sched) == before
        monkeypatch.undo()
        assert np.array_equal(sched.compile(graph(1, w))(x=X), reference(1, w, X))


def test_futures_outlive_their_scheduler() -> None:
    with vs.Scheduler(null_devices()) as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        futures: list[Future[Any]] = [run.submit(x=X * i) for i in range(3)]
    del sched, run
    gc.collect()
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(0), X * i + 1)
