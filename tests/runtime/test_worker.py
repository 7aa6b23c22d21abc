"""The CPU's worker: what is handed over is done in its order, whatever comes between."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from vksched.common.errors import PlanError
from vksched.runtime.cpu.worker import LOOK_S, Job, Worker

WAIT_S = 60.0
needs_timer = pytest.mark.skipif(sys.platform == "win32", reason="needs setitimer")


def test_jobs_are_done_in_their_order_and_give_seconds_or_what_they_raised() -> None:
    worker, order = Worker("worker"), list[int]()

    def compute(number: int) -> float:
        order.append(number)
        if number == 2:
            raise KeyError(number)
        return float(number)

    jobs = [worker.submit(lambda number=number: compute(number)) for number in range(5)]
    assert all(job.wait(WAIT_S) for job in jobs)
    assert order == [0, 1, 2, 3, 4]
    assert [job.result() for job in jobs if job is not jobs[2]] == [0.0, 1.0, 3.0, 4.0]
    for _ in range(2):
        with pytest.raises(KeyError):
            jobs[2].result()
    worker.close()
    with pytest.raises(PlanError, match="has ended"):
        worker.submit(lambda: 1.0)


def test_what_takes_too_long_goes_on_and_what_was_cancelled_never_begins() -> None:
    worker, gate, begun = Worker("worker"), threading.Event(), list[str]()
    slow = worker.submit(lambda: float(gate.wait(WAIT_S)))
    later = worker.submit(lambda: float(begun.append("later") or 1))
    assert not slow.wait(0.05) and not slow.done
    slow.cancel()  # too late: it has begun
    later.cancel()
    assert later.done and later.wait(0.0)
    gate.set()
    assert slow.wait(WAIT_S) and slow.result() == 1.0
    worker.close()
    assert begun == []
    with pytest.raises(PlanError, match="cancelled before it began"):
        later.result()


def test_nobody_hangs_on_what_an_interrupt_left_held() -> None:
    worker, gate = Worker("worker"), threading.Event()
    slow = worker.submit(lambda: float(gate.wait(WAIT_S)))
    half = worker.submit(lambda: 2.0)
    half._claim.acquire()  # of a thread that was interrupted as it cancelled it
    gate.set()
    assert slow._ended.acquire(timeout=WAIT_S)  # of one that was interrupted as it waited
    start = time.monotonic()
    assert slow.wait(WAIT_S) and half.wait(WAIT_S)
    assert time.monotonic() - start < WAIT_S / 2
    with pytest.raises(PlanError, match="cancelled before it began"):
        half.result()
    worker.close()


def test_several_threads_wait_for_one_job() -> None:
    worker, gate, ended = Worker("worker"), threading.Event(), list[bool]()
    job = worker.submit(lambda: float(gate.wait(WAIT_S)))
    waiting = [threading.Thread(target=lambda: ended.append(job.wait(WAIT_S))) for _ in range(4)]
    for thread in waiting:
        thread.start()
    time.sleep(LOOK_S / 10)
    gate.set()
    for thread in waiting:
        thread.join(WAIT_S)
    assert ended == [True] * 4
    worker.close()


def test_the_thread_ends_with_its_worker() -> None:
    before = set(threading.enumerate())
    worker = Worker("dropped")
    (thread,) = set(threading.enumerate()) - before
    job = worker.submit(lambda: 1.0)
    assert job.wait(WAIT_S)
    del worker
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.fixture
def armed() -> Iterator[dict[str, bool]]:
    """Ctrl-C comes when the timer ends, where "on"."""

    def interrupt(signum: int, frame: object) -> None:
        if on["on"]:
            raise KeyboardInterrupt

    on = {"on": False}
    before = signal.signal(signal.SIGALRM, interrupt)
    yield on
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted(armed: dict[str, bool], work: Callable[[], object], within_s: float) -> bool:
    """Return True if work was interrupted within a number of seconds."""
    try:
        armed["on"] = True
        signal.setitimer(signal.ITIMER_REAL, within_s)
        work()
    except KeyboardInterrupt:
        return True
    finally:
        armed["on"] = False
    return False


@needs_timer
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of GC's callbacks
def test_interrupts_at_any_time_never_stop_the_worker(armed: dict[str, bool]) -> None:
    worker, rng, jobs = Worker("worker"), random.Random(0), list[Job]()

    def work() -> None:
        for number in range(20):
            jobs.append(worker.submit(lambda: 1.0))
            if number % 3 == 0:
                jobs[-1].cancel()
            jobs[-1].wait(WAIT_S)

    hits, until_s = 0, time.monotonic() + 2
    while time.monotonic() < until_s:
        hits += interrupted(armed, work, rng.uniform(1e-5, 4e-4))
        job = worker.submit(lambda: 7.0)
        assert job.wait(WAIT_S) and job.result() == 7.0
        assert all(each.wait(WAIT_S) for each in jobs)
        jobs.clear()
    assert hits > 20
    worker.close()


RUNS = """
import random, signal, time
import numpy as np
import vksched as vs

armed = False

def interrupt(signum, frame):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
held = vs.state(np.zeros((4, 4), np.float32), "held")
total = held + vs.input("x", (4, 4))
x, rng, hits = np.ones((4, 4), np.float32), random.Random(1), 0
with vs.Scheduler(["cpu"]) as sched:
    run = sched.compile([total], updates={held: total})
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1.5e-3))
            for _ in range(20):
                run(x=x)
        except KeyboardInterrupt:
            hits += 1
        finally:
            armed = False
    (before,) = run(x=-x)  # whole numbers, all the same: no state is written in parts
    assert (before == before[0, 0]).all() and before[0, 0] == round(float(before[0, 0]))
    np.testing.assert_array_equal(run(x=x)[0], before + x)
assert hits > 20, hits
"""


@needs_timer
@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="an interrupt may leave any lock held there"
)
def test_interrupts_at_any_time_leave_runs_and_states_whole() -> None:
    off = {"VKSCHED_CHECK": "0", "VKSCHED_NO_VULKAN": "1"}  # the check misses what is not noted
    subprocess.run([sys.executable, "-c", RUNS], check=True, timeout=100, env={**os.environ, **off})
