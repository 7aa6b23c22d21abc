"""Which thread computes a split of the CPU: that which waits where it is brief and alone, else the
worker. What a caller is promised is the same for both.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.ir.tensor import Tensor
from vksched.runtime.cpu import cpu_device
from vksched.runtime.cpu.split_program import Program
from vksched.runtime.cpu.split_task import ComputeLock

X = np.arange(6, dtype=np.float32)
LIMIT_S = 60.0


class Watched:
    """Notes on which threads splits are computed; `then` is called with the split first."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.then: Any = lambda: None

    def watch(self, run: Any) -> Any:
        """Return the same function, with a note of each call."""

        def watched(*args: Any) -> None:
            self.threads.append(threading.current_thread().name)
            self.then()
            run(*args)

        return watched

    @property
    def here(self) -> list[bool]:
        """For each split so far whether the thread of this test computed it."""
        return [name == threading.current_thread().name for name in self.threads]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched()
    monkeypatch.setattr(Program, "run", watched.watch(Program.run))
    monkeypatch.setattr(
        cpu_device, "BRIEF_S", math.inf
    )  # however long other programs hold a run up
    yield watched


def one_op() -> Tensor:
    return vs.neg(vs.input("x", X.shape))


def patient(**options: Any) -> vs.Scheduler:
    """No run is as long as a hundredth of its timeout."""
    return vs.Scheduler(["cpu"], timeout_s=1e9, **options)


def test_the_thread_that_waits_computes_a_brief_split_from_the_second_run_on(
    watched: Watched,
) -> None:
    with patient() as sched:
        run = sched.compile(one_op())
        for _ in range(3):
            assert np.array_equal(run(x=X), -X)
    assert watched.here == [False, True, True]


def test_the_worker_computes_what_was_long(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with patient() as sched:
        run = sched.compile(one_op())
        for brief_s in (math.inf, -1.0, math.inf):
            monkeypatch.setattr(cpu_device, "BRIEF_S", brief_s)
            assert np.array_equal(run(x=X), -X)
    assert watched.here == [False, False, True]


def test_one_run_that_took_long_changes_little(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs hold it up; of several in a row the graph is long."""
    now, takes_s = [0.0], [1e-3]
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=time.sleep)
    watched.then = lambda: now.__setitem__(0, now[0] + takes_s[0])
    monkeypatch.setattr(cpu_device, "BRIEF_S", 1e-2)
    with patient() as sched:
        run = sched.compile(one_op())
        monkeypatch.setattr(cpu_device, "time", clock)
        for takes_s[0] in (1e-3, 1e-3, 9.0, 1e-3, 9.0, 9.0, 9.0, 1e-3, 1e-3):
            run(x=X)
    assert watched.here == [False, True, True, True, True, True, False, False, True]


def test_the_worker_computes_where_the_timeout_is_short(watched: Watched) -> None:
    go = threading.Event()
    with vs.Scheduler(["cpu"], timeout_s=1e-3, on_device_failure="raise") as sched:
        run = sched.compile(one_op())
        watched.then = lambda: go.wait(LIMIT_S)
        try:
            with pytest.raises(vs.DeviceTimeout, match="split 0 on cpu did not finish in 0.001 s"):
                run(x=X)
        finally:
            go.set()
    assert watched.here == [False]


def test_a_run_on_the_own_thread_that_takes_too_long_is_a_timeout(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=time.sleep)
    with vs.Scheduler(["cpu"], timeout_s=LIMIT_S, on_device_failure="raise") as sched:
        run = sched.compile(one_op())
        monkeypatch.setattr(cpu_device, "time", clock)
        run(x=X)
        watched.then = lambda: now.__setitem__(0, 61.0)
        with pytest.raises(vs.DeviceTimeout, match="did not finish in 60 s"):
            run(x=X)
    assert watched.here == [False, True]


def test_the_worker_computes_what_overlaps(watched: Watched) -> None:
    with patient() as sched:
        first = vs.neg(vs.input("x", X.shape), name="first")
        run = sched.compile(vs.exp(first), observe={"first": lambda name, value: None})
        assert len(run.plan.splits) == 2
        for _ in range(3):
            run(x=X)
    assert not any(watched.here)


def test_the_worker_writes_the_states_that_the_thread_that_waits_computes(
    watched: Watched,
) -> None:
    with patient() as sched:
        held = vs.state(np.zeros_like(X), name="held")
        run = sched.compile(held + 1.0, updates={held: held + 1.0})
        assert len(run.plan.splits) == 2
        for _ in range(3):
            run()
        assert np.array_equal(sched.read(held), X * 0 + 3)
    assert watched.here == [False, False, True, False, True, False]


def test_an_interrupt_before_states_are_written_leaves_them(watched: Watched) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with patient() as sched:
        held = vs.state(np.zeros_like(X), name="held")
        run = sched.compile(held + 1.0, updates={held: held + 1.0})
        run()
        watched.then = interrupt
        with pytest.raises(KeyboardInterrupt):
            run()
        watched.then = lambda: None
        assert np.array_equal(sched.read(held), X * 0 + 1)
        assert np.array_equal(run(), X * 0 + 2) and np.array_equal(sched.read(held), X * 0 + 2)
    assert watched.here[:3] == [False, False, True]


def test_the_worker_gets_the_turn_that_an_interrupt_has_left_here(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, release = threading.get_ident(), ComputeLock.release
    left: list[ComputeLock] = []

    def interrupted(turn: ComputeLock) -> None:
        if threading.get_ident() == me and not left:
            left.append(turn)
            raise KeyboardInterrupt
        release(turn)

    with vs.Scheduler(["cpu"], timeout_s=LIMIT_S, on_device_failure="raise") as sched:
        run, other = sched.compile(one_op()), sched.compile(vs.exp(vs.input("x", X.shape)))
        run(x=X)
        monkeypatch.setattr(ComputeLock, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(x=X)
        try:
            np.testing.assert_allclose(other(x=X), np.exp(X), rtol=1e-6)
        finally:
            release(left[0])  # else the worker would wait, and the scheduler for it
    assert watched.here == [False, True, False]


def test_an_interrupt_goes_to_the_caller_and_the_graph_lives_on(watched: Watched) -> None:
    def interrupt() -> None:
        watched.then = lambda: None
        raise KeyboardInterrupt

    with patient() as sched:
        run, other = sched.compile(one_op()), sched.compile(vs.exp(vs.input("x", X.shape)))
        for each in (run, other):
            each(x=X)
        watched.then = interrupt
        with pytest.raises(KeyboardInterrupt):
            run(x=X)
        assert np.array_equal(run(x=X), -X)
        assert np.array_equal(other(x=X), np.exp(X))
    assert watched.here == [False, False, True, True, True]


def test_an_error_of_the_data_goes_to_the_caller_and_the_graph_lives_on(watched: Watched) -> None:
    ids = vs.input("ids", (2,), "int32")
    with patient() as sched:
        run = sched.compile(vs.gather(vs.input("x", X.shape), ids))
        good = np.array([1, 0], np.int32)
        run(x=X, ids=good)
        with pytest.raises(vs.IndexOutOfRange):
            run(x=X, ids=np.array([0, 7], np.int32))
        assert np.array_equal(run(x=X, ids=good), X[[1, 0]])
    assert watched.here == [False, True, True]


def test_one_thread_computes_at_a_time(watched: Watched) -> None:
    inside, go, most, at_once = threading.Event(), threading.Event(), [0], [0]
    results: list[np.ndarray[Any, Any]] = []

    def enter() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        inside.set()
        assert go.wait(LIMIT_S)
        at_once[0] -= 1

    with patient() as sched:
        run = sched.compile(one_op())
        other = sched.compile(vs.exp(vs.input("x", X.shape)))
        for each in (run, other):
            each(x=X)
        watched.then = enter
        first = threading.Thread(target=lambda: results.append(run(x=X)), name="first")
        first.start()
        assert inside.wait(LIMIT_S)
        second = other.submit(x=X)  # finds the turn taken, so the worker has it next
        third = run.submit(x=X)
        go.set()
        first.join(LIMIT_S)
        assert np.array_equal(second.result(LIMIT_S), np.exp(X))
        assert np.array_equal(third.result(LIMIT_S), -X)
    assert np.array_equal(results[0], -X) and most == [1]
    assert watched.threads[2] == "first" and len(watched.threads) == 5


def test_events_and_figures_are_those_of_the_worker(watched: Watched) -> None:
    tape = vs.Tape()
    with patient(trace=tape) as sched:
        run = sched.compile(one_op())
        kinds = []
        for _ in range(2):
            before = len(list(tape.events))
            run(x=X)
            kinds.append(
                [(e.name, e.device, *sorted(e.fields)) for e in list(tape.events)[before:]]
            )
            assert run.stats is not None and run.stats.waits == len(run.stats.splits) == 1
            assert run.stats.splits[0].device_s > 0 and run.stats.fence_waits == 0
    assert watched.here == [False, True]
    assert kinds[0] == kinds[1]
    assert {"submit", "copy", "wait", "split", "run"} == {kind[0] for kind in kinds[1]}
