"""How many threads the CPU backend takes: as many as there are cores that nobody else works on.

    cores taken by others = (what all cores worked - what this process did) / time, over a moment
    threads               = cores of this process - those, at least 1

OpenBLAS's threads wait for each other by spinning. Where another program holds a core, all of them
wait for the one that does not run: a product then takes tens of times longer than on one thread.
What is measured is the system's own account (/proc/stat, or psutil where that is installed); where
there is none, nothing changes. Who worked while this process had nothing to do may be done by now,
as programs are that take turns with it: after such a gap no more count than run at that moment.
Programs of a lower priority than the usual one (nice) yield a core at once, so they hold none; only
a process that is such a program itself counts them. Who sets OPENBLAS_NUM_THREADS or its like has
chosen.
Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from ...fork import in_child
from ...machine.cores import usable_cores

MOMENT_S = 0.25
"""Others are looked at no more often. The first time, what was since the device was opened counts
from FIRST_S on, and so it does after a gap, in which nobody asked for so long.
"""
FIRST_S = 0.05
CHOSEN_BY = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOTO_NUM_THREADS")
"""Variables of the environment by which a user sets the threads of numpy's products."""
_IDLE = (3, 4)
"""The columns of a line of /proc/stat in which a core did nothing: idle, and waiting for a disk."""
_NICE = 1
"""The column of what programs of a lower priority did."""


def worked_s() -> float | None:
    """Returns the seconds that the cores of this process have worked, for whomever, since some
    start; None where the system does not say, as in sandboxes that show zeros.
    """
    with suppress(OSError, ValueError, AttributeError):
        return _from_proc() or None
    with suppress(ImportError, OSError):
        import psutil  # type: ignore[import-untyped, unused-ignore]

        times = psutil.cpu_times()
        free = times.idle + getattr(times, "iowait", 0.0)
        return float(sum(times) - free - (0.0 if _is_nice() else getattr(times, "nice", 0.0)))
    return None


def _from_proc() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    free = _IDLE if _is_nice() else (*_IDLE, _NICE)
    ticks = 0
    for name, *columns in lines:
        if name in own:  # guests, from column 8 on, are counted among users
            ticks += sum(int(n) for i, n in enumerate(columns[:8]) if i not in free)
    return ticks / os.sysconf("SC_CLK_TCK")


def running_now() -> int | None:
    """Returns how many threads of other programs run or wait for a core at this moment, where this
    thread is the only one of its own; None where the system does not say.
    """
    with suppress(OSError, ValueError, StopIteration), open("/proc/stat", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("procs_running"))
        return max(0, int(line.split()[1]) - 1)
    return None


def _is_nice() -> bool:
    """Whether this process is one of a lower priority than the usual one."""
    return hasattr(os, "nice") and os.nice(0) > 0


class Governor:
    """Says how many threads to take now. Safe to ask from any thread.

    worked_s, own_s, clock: the seconds that all cores worked, that this process did, and that went
        by; running: as `running_now`; others for tests.
    """

    def __init__(
        self,
        cores: int | None = None,
        worked: Callable[[], float | None] = worked_s,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
        running: Callable[[], int | None] = running_now,
    ) -> None:
        self.cores = usable_cores() if cores is None else cores
        self._worked, self._own, self._clock = worked, own, clock
        self._lock = threading.Lock()
        self._threads = self.cores
        self._wait_s = FIRST_S
        self._running = running
        self._seen = self._look()
        self._asked_s = clock()

    def threads(self) -> int:
        """Returns how many threads there are cores for, at least 1."""
        if self.cores == 1 or self._seen is None or not self._lock.acquire(blocking=False):
            return self._threads  # another thread is looking
        try:
            before_s, self._asked_s = self._asked_s, self._clock()
            if self._asked_s - self._seen[0] >= self._wait_s:
                self._update(self._seen, self._asked_s - before_s > FIRST_S)
            return self._threads
        finally:
            self._lock.release()

    def _update(self, before: tuple[float, float], gap: bool) -> None:
        now = self._look()
        if now is None:
            return
        self._seen, self._wait_s = now, FIRST_S if gap else MOMENT_S
        taken = (now[1] - before[1]) / (now[0] - before[0])
        if gap and (running := self._running()) is not None:
            taken = min(taken, running)
        self._threads = max(1, min(self.cores, int(self.cores - taken + 0.5)))

    def _look(self) -> tuple[float, float] | None:
        """Returns the time, and the seconds that others have worked."""
        worked = self._worked()
        return None if worked is None else (self._clock(), worked - self._own())


@cache
def _blas() -> list[Any]:
    """Returns the libraries of numpy's products that say how many threads they take."""
    pools = ThreadpoolController().select(user_api="blas").lib_controllers
    return [pool for pool in pools if pool.num_threads is not None]


def _set(counts: list[int]) -> None:
    """Sets the threads of each library. Newer threadpoolctl lets the first thread that sets
    them do so alone as long as it lives, unless that thread gives the right up.
    """
    for pool, count in zip(_blas(), counts, strict=True):
        if pool.num_threads == count:
            continue
        pool.set_num_threads(count)
        give_up = getattr(pool, "clear_controlling_thread", None)
        if give_up is not None:
            give_up()


class _Inside:
    """Something that runs within a limit."""

    __slots__ = ("__weakref__",)


class _Limit:
    """The threads of numpy's products, which all threads of the process share: what runs limit them
    to counts until the last of them ends, then they are as they were. One that an interrupt ends
    between any two steps is forgotten with its frame.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: weakref.WeakSet[_Inside] = weakref.WeakSet()
        self._before: list[int] = []
        """What they were; empty where they still are."""

    def begin_anew(self) -> None:
        """In a forked child: the runs are the parent's, and another thread may hold the lock. What
        they have limited stays so until a run here ends: a library is not to be asked in a fork.
        """
        self._lock = threading.Lock()
        self._inside = weakref.WeakSet()

    @contextmanager
    def of(self, threads: int) -> Iterator[None]:
        me = _Inside()
        try:
            with self._lock:
                self._inside.add(me)
                if not self._before:
                    self._before = [pool.num_threads for pool in _blas()]
                _set([min(threads, most) for most in self._before])
            yield
        finally:
            with self._lock:
                self._inside.discard(me)
                if not self._inside and self._before:
                    _set(self._before)
                    self._before = []


_limit = _Limit()
in_child(_limit.begin_anew)


@contextmanager
def products_on(threads: int, cores: int) -> Iterator[None]:
    """Within, numpy's products take no more threads than that, unless the user has said how many.
    With all cores free nothing is touched.
    """
    if threads >= cores or any(os.environ.get(name) for name in CHOSEN_BY):
        yield
        return
    with _limit.of(threads):
        yield
