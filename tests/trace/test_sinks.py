"""Sinks: one that fails, is slow or calls back never breaks a run."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from traced import X, graph_of_two_devices, null_devices

import vksched as vs


class Odd(BaseException):
    """Neither an Exception nor an interrupt."""


FAILURES = [ValueError("x"), MemoryError(), SystemExit(3), GeneratorExit(), Odd(), StopIteration()]


def expected() -> np.ndarray:
    a = np.maximum(X @ X, 0)
    return a


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("name", ["plan", "prepare", "copy", "submit", "wait", "run", "release"])
def test_a_sink_that_fails_is_removed_and_nothing_else_happens(
    failure: BaseException, name: str
) -> None:
    tape = vs.Tape()
    calls: list[str] = []

    def sink(event: vs.Event) -> None:
        calls.append(event.name)
        if event.name == name:
            raise failure

    with pytest.warns(vs.VkschedWarning, match="a sink failed and was removed") as warned:
        with vs.Scheduler(null_devices(), trace=[sink, tape]) as sched:
            run = sched.compile(**graph_of_two_devices())
            results = [run(x=X)["a"] for _ in range(3)]
    assert len(warned) == 1 and calls.count(name) == 1 and calls[-1] == name
    assert all(np.allclose(result, expected(), rtol=1e-6) for result in results)
    assert len(tape.select("run")) == 3 and not tape.select("fault") and not tape.select("failed")


def test_a_sink_that_fails_on_a_real_device_leaves_it_in_use(devices: list[str]) -> None:
    def sink(event: vs.Event) -> None:
        raise vs.DeviceLost("[sink] pretends to be a device")

    with pytest.warns(vs.VkschedWarning), vs.Scheduler(devices, trace=sink) as sched:
        run = sched.compile(vs.relu(vs.input("x", X.shape)))
        assert np.array_equal(run(x=-X), np.zeros_like(X)) and not sched.failed_devices


class Unprintable(Exception):
    """Its text is another failure."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def test_a_sink_whose_failure_cannot_be_reported_is_removed_too() -> None:
    def sink(event: vs.Event) -> None:
        raise Unprintable

    with pytest.warns(vs.VkschedWarning, match="sink failed .*Unprintable"):
        with vs.Scheduler(null_devices(), trace=sink) as sched:
            assert np.allclose(sched.compile(**graph_of_two_devices())(x=X)["a"], expected())


def test_an_interrupt_in_a_sink_is_the_users(devices: list[str]) -> None:
    armed = [True]

    def sink(event: vs.Event) -> None:
        if event.name == "wait" and armed:
            armed.clear()
            raise KeyboardInterrupt

    with vs.Scheduler(devices, trace=sink) as sched:
        run = sched.compile(vs.relu(vs.input("x", X.shape)))
        with pytest.raises(KeyboardInterrupt):
            run(x=X)
        assert np.array_equal(run(x=X), X) and not sched.failed_devices


def test_a_slow_sink_is_no_fault_of_a_device(devices: list[str]) -> None:
    tape = vs.Tape()
    with vs.Scheduler(devices, trace=[tape, lambda _: time.sleep(0.02)], timeout_s=60) as sched:
        run = sched.compile(vs.softmax(vs.input("x", X.shape)))
        for _ in range(3):
            run(x=X)
        assert not sched.failed_devices and not tape.select("slowdown") and not tape.select("fault")


def test_sinks_come_and_go_while_threads_run() -> None:
    trace = vs.Trace()
    with (
        vs.Scheduler(null_devices(), trace=trace, copies=4) as sched,
        ThreadPoolExecutor(4) as pool,
    ):
        run = sched.compile(**graph_of_two_devices())
        futures = [pool.submit(run, x=X) for _ in range(40)]
        for _ in range(50):
            tape = trace.add(vs.Tape(limit=10))
            trace.remove(tape)
        assert all(np.allclose(f.result()["a"], expected(), rtol=1e-6) for f in futures)


def test_runs_of_several_threads_are_each_whole_on_a_tape() -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape, copies=4) as sched:
        run = sched.compile(**graph_of_two_devices())
        threads = [threading.Thread(target=lambda: run(x=X)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    orders = {
        tuple((e.name, e.fields.get("split")) for e in tape.events if e.run == number)
        for number in range(8)
    }
    assert len(orders) == 1 and len(next(iter(orders))) > 10


def test_a_sink_that_calls_its_own_run_gets_an_error_and_is_removed() -> None:
    with vs.Scheduler(null_devices()) as sched:
        run = sched.compile(vs.relu(vs.input("x", X.shape)))
        sched.trace.add(lambda _: run(x=X))
        with pytest.warns(vs.VkschedWarning, match="which would wait for itself"):
            assert np.array_equal(run(x=X), X)


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(vs.PlanError, match=r"expected a vs.Trace, a sink or a list of sinks"):
        vs.Scheduler(["cpu"], trace="t.json")  # type: ignore[arg-type]
