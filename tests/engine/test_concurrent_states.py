"""Runs that share no state execute at the same time; runs that share one do not."""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import pytest
from test_closing import LIMIT_S
from test_executor import null_devices

import vksched as vs
from vksched.engine import state_locks
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
        assert len(errors) == 1
        for mine, other in ("s0", "s1"), ("s1", "s0"):
            if f"expected '{mine}'" in errors[0]:
                assert f"run with '{mine}', whose observer waits for '{other}'" in errors[0]
                assert f"this run with '{other}'" in errors[0]
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


def waiting(locks: StateLocks, *states: vs.Tensor, then: Callable[[], object]) -> threading.Thread:
    """Return a thread that calls a function while it holds states; it has requested them."""
    before = len(locks._claims)

    def work() -> None:
        with locks.hold(frozenset(states)):
            then()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while len(locks._claims) == before:
        threading.Event().wait(0.001)
    return thread


def test_a_run_waits_for_an_observer_that_began_to_read_after_its_request() -> None:
    """The observer reads s at once, because the run of s and b has not begun."""
    locks, order = StateLocks(), list[str]()
    s, b, x = (vs.state(ZERO, name=name) for name in "sbx")
    with locks.hold(frozenset({x})):
        end_b, began = threading.Event(), threading.Event()
        holder = waiting(locks, b, then=lambda: end_b.wait(LIMIT_S))
        run = waiting(locks, s, b, then=lambda: (order.append("run"), began.set()))
        with locks.hold(frozenset({s})):
            end_b.set()
            holder.join(LIMIT_S)
            assert not began.wait(0.3)
            order.append("read")
        assert began.wait(LIMIT_S)
        run.join(LIMIT_S)
    assert order == ["read", "run"]
    assert not locks._claims


class Interrupt:
    """A trace function that raises KeyboardInterrupt before the n-th line of `StateLocks`.

    An interrupt comes after a call, so neither before the first line of the `finally` block, nor
    before the release at the end of a `with` block.
    """

    def __init__(self, number: int, locks: StateLocks) -> None:
        self._left = number
        self._locks = locks

    def __call__(self, frame: FrameType, event: str, _: object) -> Interrupt | None:
        name = frame.f_code.co_filename
        if name != state_locks.__file__:
            return None
        line = linecache.getline(name, frame.f_lineno)
        releases = "with self._lock" in line and self._locks._lock._is_owned()  # type: ignore[attr-defined]
        if event == "line" and "is_over = True" not in line and not releases:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("with_error", [False, True])
def test_an_interrupt_at_any_line_leaves_no_claim(with_error: bool) -> None:
    """With an error in the block it is a second Ctrl-C."""
    a = vs.state(ZERO, name="a")
    tracer, errors = sys.gettrace(), list[BaseException]()
    for number in itertools.count():
        locks, threads, done = StateLocks(), list[threading.Thread](), threading.Event()
        try:
            sys.settrace(Interrupt(number, locks))
            with locks.hold(frozenset({a})):
                threads.append(waiting(locks, a, then=done.set))
                if with_error:
                    raise ValueError
        except (KeyboardInterrupt, ValueError) as error:
            errors.append(error)  # its traceback holds the frames
        finally:
            sys.settrace(tracer)
        assert not locks.is_holder
        if threads:
            assert done.wait(LIMIT_S), number
            threads[0].join(LIMIT_S)
        with locks.hold(frozenset({a})):
            assert locks.is_holder
        assert not locks._claims, number
        if len(errors) == number or not isinstance(errors[-1], KeyboardInterrupt):  # no line left
            break
    assert number > 10


def test_the_claim_of_a_thread_that_has_ended_blocks_nobody() -> None:
    locks = StateLocks()
    a = frozenset({vs.state(ZERO, name="a")})
    left = [locks.hold(a)]  # its block is never left
    thread = threading.Thread(target=left[0].__enter__)
    thread.start()
    thread.join(LIMIT_S)
    done = threading.Event()
    waiting_too = threading.Thread(
        target=lambda: left.append(locks.hold(a)) or left[1].__enter__() or done.set(), daemon=True
    )
    waiting_too.start()
    assert done.wait(LIMIT_S)
