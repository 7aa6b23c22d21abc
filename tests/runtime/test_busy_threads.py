"""Threads of the CPU backend where other programs hold cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ops.lowering import blas, native_kernels
from vksched.runtime.cpu import helper_backoff, thread_governor
from vksched.runtime.cpu import worker_pool as workers
from vksched.runtime.cpu.helper_backoff import ALONE, MAX_S, HelperBackoff
from vksched.runtime.cpu.split_program import Program
from vksched.runtime.cpu.thread_governor import products_alone
from vksched.runtime.cpu.worker_pool import Workers

needs_loops = pytest.mark.skipif(not native_kernels.has_programs(), reason="no native loops")
WAIT_S = 30.0


def blas_threads() -> list[int]:
    return [
        pool.num_threads for pool in ThreadpoolController().select(user_api="blas").lib_controllers
    ]


@pytest.fixture
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in blas.CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)


# -- the library of numpy's products -------------------------------------------------------------


def test_products_take_one_thread_and_are_left_as_they_were(nobody_chose: None) -> None:
    before = blas_threads()
    with products_alone():
        assert set(blas_threads()) == {1}
        with products_alone():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_who_sets_a_number_of_threads_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(blas.CHOSEN_BY[0], "7")
    before = blas_threads()
    with products_alone():
        assert blas_threads() == before


@pytest.mark.parametrize("in_loops", [True, False])
@pytest.mark.parametrize("size", [4, 256])
def test_runs_have_one_thread_for_each_product(
    size: int, in_loops: bool, nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of a few numbers take one thread anyway: nothing is set for them."""
    if not in_loops:
        monkeypatch.setattr(blas, "is_in_loops", lambda: False)
    seen: list[int] = []
    run_program = Program.run

    def watched(*args: Any) -> None:
        seen.extend(blas_threads())
        run_program(*args)

    monkeypatch.setattr(Program, "run", watched)
    before = blas_threads()
    x = np.ones((size, size), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        sched.compile(vs.matmul(vs.input("x", x.shape), x))(x=x)
    assert seen == ([1] * len(before) if size > 4 else before)
    assert blas_threads() == before


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_at_either_end_of_a_limit_leaves_none(
    at: int, nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, set_, calls = blas_threads(), thread_governor._set, iter(range(1, 9))

    def interrupted(counts: list[int]) -> None:
        if next(calls) == at:
            raise KeyboardInterrupt
        set_(counts)

    with monkeypatch.context() as patch:
        patch.setattr(thread_governor, "_set", interrupted)
        with pytest.raises(KeyboardInterrupt), products_alone():
            pass
    with products_alone():
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_a_library_that_does_not_say_its_threads_is_left_alone(
    nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(num_threads=None)
    monkeypatch.setattr(
        blas,
        "ThreadpoolController",
        lambda: SimpleNamespace(select=lambda **_: SimpleNamespace(lib_controllers=[silent])),
    )
    for found in (blas.libraries, blas.is_in_loops):
        found.cache_clear()
    try:
        assert blas.libraries() == [] and not blas.is_in_loops()
        with products_alone():
            pass
    finally:
        for found in (blas.libraries, blas.is_in_loops):
            found.cache_clear()


def test_a_system_that_lists_no_libraries_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FileNotFoundError("/proc/self/maps")

    monkeypatch.setattr(blas, "ThreadpoolController", refuse)
    assert blas.libraries.__wrapped__() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_in_the_midst_of_a_run_runs_its_own() -> None:
    code = """
import os, signal
import numpy
from vksched.ops.lowering import blas
from vksched.runtime.cpu import thread_governor
limit = thread_governor._limit
names = [pool.num_threads for pool in blas.libraries()]
with limit.to_one():
    limit._lock.acquire()  # as another thread may at that moment
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with limit.to_one():
            pass
        os._exit([pool.num_threads for pool in blas.libraries()] != names)
    limit._lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_schedulers_on_several_threads_compute_at_once(
    nobody_chose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    before, rng = blas_threads(), np.random.default_rng(0)
    x, w = (rng.standard_normal((300, 400), dtype=np.float32) for _ in range(2))
    built: list[bytes] = []

    def work() -> None:
        with vs.Scheduler(["cpu"]) as sched:
            run = sched.compile(vs.relu(vs.matmul(vs.input("x", x.shape), w, transpose_b=True)))
            built.extend(np.asarray(run(x=x)).tobytes() for _ in range(20))

    together = [threading.Thread(target=work) for _ in range(3)]
    for each in together:
        each.start()
    for each in together:
        each.join(WAIT_S)
    assert len(built) == 60 and len(set(built)) == 1
    np.testing.assert_allclose(
        np.frombuffer(built[0], np.float32).reshape(300, 300), np.maximum(x @ w.T, 0), 1e-4, 1e-3
    )
    assert blas_threads() == before


# -- pauses --------------------------------------------------------------------------------------


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_helper_stays_away_for_a_while_after_a_delay() -> None:
    clock = Clock()
    paused = HelperBackoff(clock)
    paused.tell(0.0)
    assert paused.helpers(1) == 1
    for number in range(3):  # each soon after the last pause: twice as long
        paused.tell(0.002)
        clock.now_s += ALONE * 0.002 * 2**number - 1e-6
        assert paused.helpers(1) == 0
        clock.now_s += 2e-6
        assert paused.helpers(1) == 1
    clock.now_s += 1.0  # long after it: as at first
    paused.tell(0.002)
    clock.now_s += ALONE * 0.002 + 1e-6
    assert paused.helpers(1) == 1


def test_of_many_helpers_as_many_stay_away_as_lack_a_core() -> None:
    clock = Clock()
    paused = HelperBackoff(clock)
    found = []
    for _ in range(5):  # one after the other, in the same pause
        paused.tell(0.002)
        found.append(paused.helpers(15))
    assert found == [14, 12, 8, 0, 0]
    clock.now_s += MAX_S
    assert paused.helpers(15) == 15
    clock.now_s += 1.0
    for _ in range(5):  # with one fewer there are cores for all
        paused.tell(0.002)
        assert paused.helpers(15) == 14
        while paused.helpers(15) == 14:
            clock.now_s += 0.001


def test_pauses_end() -> None:
    clock = Clock()
    paused = HelperBackoff(clock)
    for _ in range(20):
        paused.tell(10.0)
        assert paused.helpers(1) == 0
        paused.tell(10.0)
        clock.now_s += MAX_S + 1e-6
        assert paused.helpers(3) == 3


def test_pieces_are_the_callers_alone_in_a_pause() -> None:
    clock = Clock()
    pool, by = Workers("test", 3, HelperBackoff(clock)), set[int]()
    for _ in range(2):
        pool.paused.tell(1.0)
    try:
        pool.each(lambda _: by.add(threading.get_ident()), ((i,) for i in range(50)))
        assert by == {threading.get_ident()}
        clock.now_s += MAX_S + 1.0
        meet = threading.Barrier(3, timeout=WAIT_S)
        pool.each(lambda _: meet.wait(), ((i,) for i in range(3)))
    finally:
        pool.close()


def test_a_helper_that_stays_away_with_a_piece_begins_a_pause() -> None:
    pool, caller, done = (
        Workers("test", 2, HelperBackoff(Clock())),
        threading.get_ident(),
        list[int](),
    )
    taken, start_s = threading.Event(), time.perf_counter()

    def piece(number: int) -> None:
        if threading.get_ident() != caller:
            taken.set()
            while len(done) < 3:  # the caller makes all others
                time.sleep(0)
            all_s = time.perf_counter() - start_s  # longer than each of them
            while time.perf_counter() - start_s < 2 * all_s + 40 * helper_backoff.DELAY_S:
                pass
        else:
            assert taken.wait(WAIT_S)
        done.append(number)

    try:
        pool.each(piece, ((i,) for i in range(4)))
    finally:
        pool.close()
    assert sorted(done) == [0, 1, 2, 3]
    assert pool.paused.helpers(1) == 0


def test_a_helper_that_never_comes_is_not_waited_for() -> None:
    pool, blocked = Workers("test", 2, HelperBackoff(Clock())), threading.Event()
    try:
        pool.help(lambda: blocked.wait(WAIT_S) and None)  # the only other thread
        done = list[int]()
        pool.each(done.append, ((i,) for i in range(64)))
        assert sorted(done) == list(range(64))
        assert pool.paused.helpers(1) == 1
    finally:
        blocked.set()
        pool.close()


def test_runs_go_on_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    pool, done = Workers("test", 3, HelperBackoff()), list[int]()
    with monkeypatch.context() as at_exit:
        at_exit.setattr(threading.Thread, "start", refuse)
        pool.each(done.append, ((i,) for i in range(9)))
        pool.help(lambda: None)
    assert sorted(done) == list(range(9))


# -- native programs -----------------------------------------------------------------------------

VALUES, PIECES = 1 << 16, 16


def relu_program(loops_: int = 8) -> tuple[Any, list[NDArray], NDArray, NDArray]:
    """Relus of pieces, one after the other, between which are some of one piece."""
    native = native_kernels.native
    x = np.random.default_rng(0).standard_normal(VALUES, dtype=np.float32)
    chain = (1, VALUES, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, native.fused_op_names.index("relu"), 0, 0, 0)
    steps = [
        ("fused_elementwise", [number, number + 1], chain, (0.0, 0.0), PIECES if number % 2 else 1)
        for number in range(loops_)
    ]
    program = native.Program(steps, [x.nbytes] * (loops_ + 1), [0, loops_])
    stored = [np.empty_like(x) for _ in range(loops_ - 1)]
    for number, array in enumerate(stored, 1):
        program.bind(number, array)
    return program, stored, x, np.full_like(x, np.nan)


@needs_loops
@pytest.mark.parametrize("helpers", [0, 1, 4])
def test_helpers_sleep_and_wake_between_loops(helpers: int) -> None:
    """Many runs one after the other, to which helpers come early, late or not at all."""
    program, _arrays, x, out = relu_program()
    pool = Workers("test", helpers + 1, HelperBackoff())
    try:
        for number in range(300):
            out[:] = np.nan
            delayed_s = program.run([x, out], lambda: pool.help(program.help))
            assert delayed_s >= 0
            np.testing.assert_array_equal(out, np.maximum(x, 0))
            if number % 50 == 0:
                time.sleep(0.002)  # helpers of the last run have gone
    finally:
        pool.close()


@needs_loops
def test_a_run_without_helpers_has_no_delay() -> None:
    program, _arrays, x, out = relu_program()
    assert program.run([x, out]) == 0
    assert program.run([x, out], lambda: None) == 0
    np.testing.assert_array_equal(out, np.maximum(x, 0))


@needs_loops
def test_a_segment_tells_of_its_delays(nobody_chose: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the pause that follows, it runs without helpers."""
    clock, asked = Clock(), list[bool]()
    paused = HelperBackoff(clock)
    monkeypatch.setattr(Workers.__init__, "__defaults__", (None, paused))
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    native = native_kernels.native.Program

    class Delayed:
        """A program whose helpers lose their cores in each run."""

        def __init__(self, *args: Any) -> None:
            self._own = native(*args)
            self.bind, self.help = self._own.bind, self._own.help

        def run(self, arrays: Any, begin: Any = None) -> float:
            asked.append(begin is not None)
            self._own.run(arrays)
            return 0.01 if begin is not None else 0.0

    monkeypatch.setattr(native_kernels, "native", SimpleNamespace(**vars(native_kernels.native)))
    monkeypatch.setattr(native_kernels.native, "Program", Delayed)
    x = np.ones((256, 1024), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.gelu(vs.input("x", x.shape)))
        for _ in range(3):
            run(x=x)
        clock.now_s += ALONE * 0.01 + 1e-6
        run(x=x)
    assert asked == [True, False, False, True]


# -- under load ----------------------------------------------------------------------------------


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core")
def test_busy_programs_do_not_multiply_the_time(tmp_path: Path) -> None:
    """In turns with one thread, next to busy programs of a lower priority: where threads of the
    library waited for each other by spinning, runs took up to 28 times as long.
    """
    reported = ["--loops", str(os.cpu_count()), "--nice", "10", "--turns", "5", "--seconds", "0.2"]
    script, found = Path("benchmarks/overheads/busy.py").resolve(), tmp_path / "found.json"
    env = {k: v for k, v in os.environ.items() if k not in blas.CHOSEN_BY}
    command = [sys.executable, str(script), *reported, "--json", str(found)]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=200)
    rows = json.loads(found.read_text())
    assert [row["network"] for row in rows] == ["six layers", "MLP"]
    for row in rows:
        assert row["ratio"]["one thread"] < 4, row


def test_a_helper_on_a_slower_core_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its piece counts by the time of its core: longer than the caller's, but not lost."""
    core_s = count(0.0, 2.0)
    monkeypatch.setattr(time, "thread_time", lambda: next(core_s))
    paused, caller, helped = HelperBackoff(), threading.get_ident(), threading.Event()

    def piece(number: int) -> None:
        if threading.get_ident() == caller:
            assert helped.wait(60)  # so that the helper has a piece
        else:
            helped.set()
            time.sleep(0.5)

    workers = Workers("test", 2, paused)
    workers.each(piece, [(0,), (1,)])
    assert paused.helpers(1) == 1
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)  # now it has no core for so long
    helped.clear()
    workers.each(piece, [(0,), (1,)])
    assert paused.helpers(1) == 0
    workers.close()
