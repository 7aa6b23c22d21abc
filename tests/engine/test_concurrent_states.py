"""Runs that share no state execute at the same time; runs that share one do not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_closing import LIMIT_S
from test_executor import null_devices

import vksched as vs
from vksched.engine.state_locks import StateLocks

ZERO = np.zeros(3, np.float32)


def together(*calls: Callable[[], object]) -> None:
    """Call each function in a thread of its own; raise the first error."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result(LIMIT_S)


def counter(
    sched: vs.Scheduler, state: vs.Tensor, device: str, observer: Callable[..., object]
) -> vs.CompiledGraph:
    """A run that adds one to a state, and calls an observer before."""
    seen = vs.neg(state, name=f"seen.{device}")
    return sched.compile(
        seen, {"*": device}, updates={state: state + 1.0}, observe={seen: observer}
    )


def test_runs_with_different_states_overlap() -> None:
    """Each run waits for the other one in its observer."""
    both = threading.Barrier(2)
    with vs.Scheduler(null_devices(2)[1]) as sched:
        states = [vs.state(ZERO, name=f"s{i}") for i in range(2)]
        runs = [
            counter(sched, state, f"null:{i}", lambda *_: both.wait(LIMIT_S) >= 0)
            for i, state in enumerate(states)
        ]
        together(*runs)
        for state in states:
            assert np.array_equal(sched.read(state), ZERO + 1)


def test_runs_that_share_a_state_do_not_overlap() -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def observer(*_: object) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with lock:
            inside -= 1

    with vs.Scheduler(null_devices(1)[1]) as sched:
        state = vs.state(ZERO, name="s")
        run = counter(sched, state, "null:0", observer)
        together(*[run] * 6)
        assert most == 1
        assert np.array_equal(sched.read(state), ZERO + 6)


def test_an_observer_reads_a_state_of_another_run() -> None:
    """The other run ends first."""
    running, found = threading.Event(), []
    with vs.Scheduler(null_devices(2)[1]) as sched:
        one, other = (vs.state(ZERO, name=f"s{i}") for i in range(2))

        def read(*_: object) -> None:
            assert running.wait(LIMIT_S)
            found.append(sched.read(other))

        def slow(*_: object) -> None:
            running.set()
            threading.Event().wait(0.02)

        runs = counter(sched, one, "null:0", read), counter(sched, other, "null:1", slow)
        together(*runs)
        assert np.array_equal(found[0], ZERO + 1)


def test_observers_that_wait_for_each_other() -> None:
    both, errors = threading.Barrier(2), []
    with vs.Scheduler(null_devices(2)[1]) as sched:
        states = [vs.state(ZERO, name=f"s{i}") for i in range(2)]

        def observer(of: int) -> Callable[..., None]:
            def read(*_: object) -> None:
                both.wait(LIMIT_S)
                try:
                    sched.read(states[1 - of])
                except vs.PlanError as error:
                    errors.append(str(error))

            return read

        together(*(counter(sched, s, f"null:{i}", observer(i)) for i, s in enumerate(states)))
        assert len(errors) == 1 and "waits for this one" in errors[0]
        for state in states:
            assert np.array_equal(sched.read(state), ZERO + 1)


def test_requests_are_served_in_their_order() -> None:
    """A run of both states is not overtaken for ever by runs of one."""
    locks, order = StateLocks(), []
    a, b = (vs.state(ZERO, name=name) for name in "ab")

    def use(name: str, *states: vs.Tensor) -> threading.Thread:
        def work() -> None:
            with locks.hold(frozenset(states)):
                order.append(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while len(locks._claims) < len(threads) + 2:
            threading.Event().wait(0.001)
        return thread

    threads: list[threading.Thread] = []
    with locks.hold(frozenset({a})):
        threads.append(use("both", a, b))
        threads.append(use("b", b))
    for thread in threads:
        thread.join(LIMIT_S)
    assert order == ["both", "b"]
    assert not locks._claims


def test_an_interrupted_wait_holds_nothing() -> None:
    locks = StateLocks()
    a = frozenset({vs.state(ZERO, name="a")})
    with pytest.raises(KeyboardInterrupt), locks.hold(a):
        raise KeyboardInterrupt
    assert not locks.is_holder
    with locks.hold(a):
        assert locks.is_holder
