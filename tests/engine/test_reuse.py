"""Reuse: the same graph again costs nothing, new shapes are planned anew, nothing is mutated."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from test_closing import LIMIT_S, GatedDevice
from test_executor import X, null_devices, scheduler

import vksched as vs
from vksched.planner import planner
from vksched.runtime.vulkan.device_handle import Counters

W = np.random.default_rng(3).standard_normal((4, 5), dtype=np.float32)


def counters(sched: vs.Scheduler) -> list[Counters]:
    return [d.context.counters for d in sched.devices if hasattr(d, "context")]


def created_objects(sched: vs.Scheduler) -> list[tuple[int, int, int]]:
    """What has been created on each device."""
    return [(c.buffers, c.pipelines, c.recordings) for c in counters(sched)]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each plan that is made."""
    count: list[int] = []
    original = planner.plan_graph

    def counted(*args: Any, **options: Any) -> vs.Plan:
        count.append(1)
        return original(*args, **options)

    monkeypatch.setattr("vksched.planner.planner.plan_graph", counted)
    return count


def test_the_same_graph_again_plans_and_allocates_nothing(
    devices: list[str], plans: list[int]
) -> None:
    w = vs.weight(W, name="w")

    def graph() -> vs.Tensor:
        return vs.relu(vs.input("x", (3, 4)) @ w * 2.0, name="y")

    with vs.Scheduler(devices) as sched:
        first = sched.compile(graph())
        expected = first(x=X)
        before = created_objects(sched)
        again = sched.compile(graph())
        assert again.plan is first.plan and len(plans) == 1
        assert np.array_equal(again(x=X), expected)
        assert created_objects(sched) == before
        assert again is not first, "each has its own end"
        first.close()
        with pytest.raises(vs.PlanError, match="closed"):
            first(x=X)
        assert np.array_equal(again(x=X), expected)
        again.close()
        third = sched.compile(graph())
        assert len(plans) == 2 and np.array_equal(third(x=X), expected)


def test_what_differs_is_compiled_anew(plans: list[int]) -> None:
    sched, _ = scheduler(2)
    w = vs.weight(W, name="w")
    x = vs.input("x", (3, 4))
    with sched:
        sched.compile(x @ w)
        different: list[Any] = [
            lambda: sched.compile(vs.input("x", (2, 4)) @ w),
            lambda: sched.compile(vs.input("z", (3, 4)) @ w),
            lambda: sched.compile(vs.input("x", (3, 4)) @ vs.weight(W, name="w")),
            lambda: sched.compile(x @ w, placement={"w": "null:1"}),
            lambda: sched.compile({"named": x @ w}),
            lambda: sched.compile(x @ w, observe={"matmul": print}),
            lambda: sched.compile(x @ w * 2.0),
            lambda: sched.compile(x @ w * 3.0),
        ]
        for count, compile in enumerate(different, start=2):
            compile()
            assert len(plans) == count
        before = len(plans)
        for compile in different:
            compile()
        assert len(plans) == before + 1, "only the weight of the third is a new one each time"


def test_zeros_of_both_signs_are_different_attributes() -> None:
    """They are equal in Python, and give different results."""
    x = vs.input("x", (1,))
    one = np.ones(1, np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        for zero in (0.0, -0.0, 0.0):
            padded = sched.compile(vs.pad(x, [(1, 1)], value=zero))(x=one)
            clipped = sched.compile(vs.clip(x, zero, 5.0))(x=-one)
            below = bool(np.signbit(zero))
            assert np.signbit(padded).tolist() == [below, False, below]  # type: ignore[arg-type]
            assert np.signbit(clipped).tolist() == [below]  # type: ignore[arg-type]


def test_two_observers_of_one_graph_are_separate() -> None:
    sched, _ = scheduler(1)
    y = vs.add(vs.input("x", X.shape), 1.0, name="y")
    seen: list[str] = []
    with sched:
        one = sched.compile(vs.relu(y), observe={"y": lambda *_: seen.append("one")})
        two = sched.compile(vs.relu(y), observe={"y": lambda *_: seen.append("two")})
        assert one.plan is two.plan
        one(x=X)
        two(x=X)
        two.submit(x=X).result()
    assert seen == ["one", "two", "two"]


def test_nothing_of_the_users_graph_changes(devices: list[str]) -> None:
    held = vs.state(np.ones((3, 5), np.float32), name="s")
    x, w = vs.input("x", (3, 4)), vs.weight(W, name="w")
    y = vs.softmax(vs.transpose(x @ w + held)[1:3], axis=-1)
    before, _ = vs.build_graph([y], {held: held * 2.0})
    arrays = {k: v.copy() for k, v in before.data.items()}
    with vs.Scheduler(devices) as sched:
        run = sched.compile(
            [y], updates={held: held * 2.0}, placement={"w": sched.devices[-1].name}
        )
        run(x=X)
        run(x=X)
    after, _ = vs.build_graph([y], {held: held * 2.0})
    strip = [(n.op, n.inputs, n.attrs, n.type, n.name) for n in before.nodes]
    assert [(n.op, n.inputs, n.attrs, n.type, n.name) for n in after.nodes] == strip
    assert all(np.array_equal(before.data[k], v) for k, v in arrays.items())
    assert np.array_equal(held.data, np.ones((3, 5)))


def test_a_function_compiles_once_per_shape(devices: list[str], plans: list[int]) -> None:
    w = vs.weight(W, name="w")
    with vs.Scheduler(devices) as sched:
        f = sched.function(lambda x: vs.relu(x @ w))
        for rows in (2, 3, 2, 7, 3, 2):
            x = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
            assert np.allclose(f(x=x), np.maximum(x @ W, 0), atol=1e-5)
        assert len(plans) == 3
        before = created_objects(sched)
        future = f.submit(x=X)
        assert np.allclose(future.result(), np.maximum(X @ W, 0), atol=1e-5)
        assert created_objects(sched) == before and len(plans) == 3
        assert f(x=[[1.0, 2, 3, 4]]).shape == (1, 5)  # type: ignore[union-attr]


def test_a_function_forgets_the_shape_not_used_for_longest(plans: list[int]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        f = sched.function(lambda x: vs.neg(x), limit=2)
        for size in (1, 2, 1, 3):
            f(x=np.ones(size, np.float32))
        assert f.shapes == ({"x": (1,)}, {"x": (3,)})
        f(x=np.ones(2, np.float32))
        assert len(plans) == 4 and f.shapes == ({"x": (3,)}, {"x": (2,)})
        f.close()
        assert f.shapes == () and len(sched.graphs.compiled) == 0
        with pytest.raises(vs.GraphError, match="limit"):
            sched.function(lambda x: x, limit=0)


def test_a_new_shape_in_a_callback_leaves_the_runs_of_the_old_one() -> None:
    """They were accepted, so the graph is kept beyond its limit until they are done."""
    device = GatedDevice("null:0", vs.SimulatedClock())
    built: list[Any] = []
    called = threading.Event()
    with vs.Scheduler([device], copies=1) as sched:
        f = sched.function(lambda x: vs.relu(x), limit=1)
        first = f.submit(x=np.zeros(3, np.float32))

        def another_shape(_: Future[Any]) -> None:
            built.append(f(x=np.ones(7, np.float32)))
            called.set()

        first.add_done_callback(another_shape)
        rest = [f.submit(x=np.full(3, i, np.float32)) for i in range(3)]
        device.gate.set()
        assert called.wait(LIMIT_S) and np.array_equal(built[0], np.ones(7))
        for i, future in enumerate(rest):
            assert np.array_equal(future.result(LIMIT_S), np.full(3, i))


def test_a_function_with_states_and_bounds() -> None:
    total = vs.state(np.float32(0), name="total")
    with vs.Scheduler(["cpu"]) as sched:

        def step(x: vs.Tensor) -> Any:
            grown = total + vs.reduce_sum(x)
            return grown, {total: grown}

        f = sched.function(step)
        assert f(x=np.ones(3, np.float32)) == 3 and f(x=np.ones((2, 2), np.float32)) == 7
        assert sched.read(total) == 7
        ids = sched.function(lambda ids: ids + 1, bounds={"ids": (0, 5)})
        with pytest.raises(vs.IndexOutOfRange):
            ids(ids=np.array([6]))
        with pytest.raises(vs.GraphError, match="outputs"):
            sched.function(lambda x: 3)(x=X)  # type: ignore[arg-type, return-value]


def test_a_function_from_many_threads() -> None:
    sched, _ = scheduler(2)
    problems: list[object] = []
    with sched:
        f = sched.function(lambda x: vs.add(vs.mul(x, 2.0), 1.0), limit=2)

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(15):
                x = rng.random(int(rng.integers(1, 6)), dtype=np.float32)
                if not np.allclose(f(x=x), x * 2 + 1):
                    problems.append(x)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems


def test_reserve_plans_what_compile_carries_out(devices: list[str]) -> None:
    w = vs.weight(W, name="w")
    y = vs.relu(vs.input("x", (3, 4)) @ w)
    with vs.Scheduler(devices) as sched:
        before = created_objects(sched)
        free = [getattr(d, "context", None) and d.context.free_bytes() for d in sched.devices]
        plan = sched.reserve(y)
        assert created_objects(sched) == before, "nothing is allocated"
        assert free == [
            getattr(d, "context", None) and d.context.free_bytes() for d in sched.devices
        ]
        run = sched.compile(y)
        assert plan.explain() == run.plan.explain()
        assert [m.peak_bytes for m in plan.memory] == [m.peak_bytes for m in run.plan.memory]
        allocated = sum(c.buffer_bytes for c in counters(sched))
        planned = sum(m.peak_bytes for m in plan.memory[:-1])
        assert allocated >= planned or devices == ["cpu"]


def test_synchronize_waits_for_all_that_was_submitted(devices: list[str]) -> None:
    with vs.Scheduler(devices, copies=2) as sched:
        one = sched.compile(vs.exp(vs.input("x", X.shape)))
        two = sched.compile(vs.neg(vs.input("x", X.shape)))
        futures = [run.submit(x=X + i) for i in range(5) for run in (one, two)]
        one.synchronize()
        assert all(f.done() for f in futures[::2])
        sched.synchronize()
        assert all(f.done() for f in futures)
        sched.synchronize()


def test_synchronize_from_the_thread_of_a_run_is_refused() -> None:
    """It would wait for itself."""
    reported: list[str] = []
    y = vs.add(vs.input("x", X.shape), 1.0, name="y")
    with vs.Scheduler(["cpu"]) as sched:

        def inside(name: str, value: object) -> None:
            with pytest.raises(vs.PlanError, match="wait for itself") as error:
                run.synchronize()
            reported.append(str(error.value))

        run = sched.compile(vs.relu(y), observe={y: inside})
        run.submit(x=X).result()
        run.synchronize()
    assert len(reported) == 1


def test_bounds_of_an_input_that_a_function_lacks_are_refused() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        near = sched.function(lambda ids: ids + 1, bounds={"idx": (0, 5)})
        with pytest.raises(vs.GraphError, match=r"bounds of inputs \['ids'\], got \['idx'\]"):
            near(ids=np.zeros(3, np.int32))


def test_a_device_of_an_open_scheduler_is_refused_to_another() -> None:
    """Each would keep books of its own of the states and the memory there."""
    device, other = null_devices(2)[1]
    with vs.Scheduler([device]) as sched:
        with pytest.raises(vs.DeviceError, match="null:0 is in use by another open Scheduler"):
            vs.Scheduler([other, device])
        run = sched.compile(vs.neg(vs.input("x", X.shape)))
        assert np.array_equal(run(x=X), -X)
    with vs.Scheduler([other, device]) as sched:
        run = sched.compile(vs.neg(vs.input("x", X.shape), name="y"), {"y": "null:0"})
        assert np.array_equal(run(x=X), -X)
        with pytest.raises(vs.DeviceError, match="null:0 is in use by another open Scheduler"):
            vs.Scheduler([vs.FaultInjectionDevice(device, at=None)])


TWICE = "twice, once inside a wrapper such as FaultInjectionDevice"


def test_a_device_twice_is_reported_also_inside_a_wrapper() -> None:
    device = null_devices(1)[1][0]
    wrapped = vs.FaultInjectionDevice(device, at=None)
    with pytest.raises(vs.DeviceError, match="null:0 is given twice$"):
        vs.Scheduler([device, device])
    for pair in ([device, wrapped], [wrapped, device], [wrapped, vs.ThrottledDevice(wrapped)]):
        with pytest.raises(vs.DeviceError, match=TWICE):
            vs.Scheduler(pair)
    other = null_devices(1)[1][0]
    for pair in ([device, other], [vs.FaultInjectionDevice(other, at=None), device]):
        with pytest.raises(vs.DeviceError, match="distinct names, got two that are called null:0"):
            vs.Scheduler(pair)
