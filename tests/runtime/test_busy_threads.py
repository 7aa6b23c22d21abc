"""Threads of the CPU backend where other programs hold cores."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import vksched as vs
from vksched.ops.core import loops
from vksched.runtime.host import cpu, threads
from vksched.runtime.host.program import Program
from vksched.runtime.host.threads import CHOSEN_BY, FIRST_S, MOMENT_S, Governor, products_on


class Machine:
    """A clock and an account of the cores' work, moved by hand."""

    def __init__(self) -> None:
        self.now_s = self.own_s = self.worked_s = 0.0
        self.running: int | None = None

    def governor(self, cores: int) -> Governor:
        return Governor(
            cores,
            lambda: self.worked_s,
            lambda: self.own_s,
            lambda: self.now_s,
            lambda: self.running,
        )

    def passes(self, seconds: float, own: float, others: float) -> None:
        """own, others: the cores that this process and others hold meanwhile."""
        self.now_s += seconds
        self.own_s += own * seconds
        self.worked_s += (own + others) * seconds


def blas_threads() -> list[int]:
    return [
        pool.num_threads for pool in ThreadpoolController().select(user_api="blas").lib_controllers
    ]


@pytest.fixture
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("cores", "own", "others", "wanted"),
    [(2, 2, 0, 2), (2, 1, 0.2, 2), (2, 1, 1, 1), (2, 1, 2, 1), (16, 14, 2, 14), (1, 1, 1, 1)],
)
def test_what_others_hold_is_left_to_them(
    cores: int, own: float, others: float, wanted: int
) -> None:
    machine = Machine()
    governor = machine.governor(cores)
    assert governor.threads() == cores
    machine.passes(FIRST_S, own, others)
    assert governor.threads() == wanted
    machine.passes(MOMENT_S / 2, own, 0)
    assert governor.threads() == wanted  # not yet looked at again
    machine.passes(MOMENT_S, own, 0)
    machine.passes(MOMENT_S, own, 0)
    governor.threads()
    machine.passes(MOMENT_S, own, 0)
    assert governor.threads() == cores


@pytest.mark.parametrize(("running", "wanted"), [(0, 2), (1, 1), (5, 1), (None, 1)])
def test_who_has_taken_turns_and_is_done_holds_nothing(running: int | None, wanted: int) -> None:
    machine = Machine()
    governor = machine.governor(2)
    machine.running = running
    machine.passes(1.0, 0, 2)  # the other one's turn
    assert governor.threads() == wanted
    for _ in range(4):  # its next look is soon, and goes by what it measured
        machine.passes(FIRST_S / 4 + 1e-6, 2, 0)
        governor.threads()
    assert governor.threads() == 2
    for _ in range(20):
        machine.passes(FIRST_S / 2, 1, 1)
        governor.threads()
    assert governor.threads() == 1  # beside its own work the others count


def test_what_runs_at_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (("cpu 1\nprocs_running 3\n", 2), ("procs_running 0\n", 0), ("", None)):
        monkeypatch.setattr(
            threads, "open", lambda *a, _text=text, **k: io.StringIO(_text), raising=False
        )
        assert threads.running_now() == wanted


def test_without_an_account_of_the_system_all_cores_are_taken() -> None:
    assert Governor(8, lambda: None).threads() == 8


@pytest.mark.skipif(threads.worked_s() is None, reason="the system does not say what cores did")
def test_the_account_goes_on_with_own_work() -> None:
    before = threads.worked_s()
    while (now := threads.worked_s()) == before:
        sum(range(10_000))
    assert before is not None and now is not None and now > before


@pytest.mark.parametrize(("niceness", "wanted_s"), [(0, 8.0), (5, 9.0)])
def test_programs_that_yield_hold_no_core(
    niceness: int, wanted_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = "cpu  0 0 0 0 0 0 0 0\ncpu0 500 100 200 9900 300 40 30 30 0 0\nintr 5\n"
    monkeypatch.setattr(threads, "open", lambda *a, **k: io.StringIO(account), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: 100, raising=False)
    monkeypatch.setattr(os, "nice", lambda step: niceness, raising=False)
    assert threads.worked_s() == wanted_s


def test_zeros_are_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_from_proc", lambda: 0.0)
    assert threads.worked_s() is None


def test_products_are_limited_and_left_as_they_were(nobody_chose: None) -> None:
    before = blas_threads()
    with products_on(1, 4):
        assert set(blas_threads()) == {1}
        with products_on(2, 4):
            assert blas_threads() == [min(2, n) for n in before]
        assert all(n <= 2 for n in blas_threads())
    assert blas_threads() == before
    with products_on(4, 4):
        assert blas_threads() == before


def test_who_sets_a_number_of_threads_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOSEN_BY[0], "7")
    before = blas_threads()
    with products_on(1, 4):
        assert blas_threads() == before


@pytest.mark.parametrize("size", [4, 64])
def test_runs_on_the_cpu_take_the_threads_that_are_free(
    size: int, nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of a few numbers take one thread anyway: nothing is set for them."""
    monkeypatch.setattr(Governor, "threads", lambda self: 1)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    seen: list[int] = []
    run_program = Program.run

    def watched(*given: Any) -> None:
        seen.extend(blas_threads())
        run_program(*given)

    monkeypatch.setattr(Program, "run", watched)
    before = blas_threads()
    x = np.ones((size, size), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        sched.compile(vs.matmul(vs.input("x", x.shape), x))(x=x)
    assert seen == ([1] * len(before) if size > 4 else before)
    assert blas_threads() == before


@pytest.mark.skipif(not loops.conv_functions(), reason="no native loops")
@pytest.mark.parametrize("large", [False, True])
def test_a_small_product_beside_native_loops_leaves_them_the_cores(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    asked: list[int] = []

    @contextmanager
    def noted(threads: int, cores: int) -> Iterator[None]:
        asked.append(threads)
        yield

    monkeypatch.setattr(cpu, "products_on", noted)
    monkeypatch.setattr(Governor, "threads", lambda self: 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    x, rng = vs.input("x", (1, 64, 32, 32)), np.random.default_rng(0)
    kernel = vs.weight(rng.standard_normal((64, 64, 3, 3), dtype=np.float32))
    rows = vs.input("rows", (512 if large else 1, 512))
    right = vs.weight(rng.standard_normal((512, 1000), dtype=np.float32))
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile([vs.conv(x, kernel), vs.matmul(rows, right)])
        run(x=np.ones(x.shape, np.float32), rows=np.ones(rows.shape, np.float32))
    assert asked == [2 if large else 1]


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_at_either_end_of_a_limit_leaves_none(
    at: int, nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, set_, calls = blas_threads(), threads._set, iter(range(1, 9))

    def interrupted(counts: list[int]) -> None:
        if next(calls) == at:
            raise KeyboardInterrupt
        set_(counts)

    with monkeypatch.context() as patch:
        patch.setattr(threads, "_set", interrupted)
        with pytest.raises(KeyboardInterrupt), products_on(1, 4):
            pass
    with products_on(1, 4):
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_runs_go_on_when_the_interpreter_ends(
    nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    before = blas_threads()
    with monkeypatch.context() as at_exit:
        at_exit.setattr(threading.Thread, "start", refuse)
        with products_on(0, 4):  # of which no library is: a thread is wanted in any case
            pass
    with products_on(1, 4):
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_a_library_that_does_not_say_its_threads_is_left_alone(
    nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(num_threads=None)
    monkeypatch.setattr(
        threads,
        "ThreadpoolController",
        lambda: SimpleNamespace(select=lambda **_: SimpleNamespace(lib_controllers=[silent])),
    )
    threads._blas.cache_clear()
    try:
        with products_on(1, 4):
            pass
    finally:
        threads._blas.cache_clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_in_the_midst_of_a_run_runs_its_own() -> None:
    code = """
import os, signal
import numpy
from vksched.ops.core import loops
from vksched.runtime.host import cpu, threads
limit = threads._limit
names = [pool.num_threads for pool in threads._blas()]
with limit.of(1):
    limit._lock.acquire()  # as another thread may at that moment
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with limit.of(1):
            pass
        os._exit([pool.num_threads for pool in threads._blas()] != names)
    limit._lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("0\n", "")
