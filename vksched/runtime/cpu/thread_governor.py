"""Thread governor: numpy's BLAS uses one thread while the CPU backend runs, which partitions
matmuls itself.

    run ---- one BLAS thread ---- end ---- as many as before ----> the user's matmuls

Why: vksched/ops/lowering/blas.py. If the user sets OPENBLAS_NUM_THREADS or a similar variable,
nothing is changed. Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ...common.fork_guard import in_child
from ...ops.lowering import blas


def _set(counts: list[int]) -> None:
    """Set the thread count of each library. Recent threadpoolctl gives the first thread that sets
    it exclusive control for its lifetime, unless the thread gives it up.
    """
    for pool, count in zip(blas.libraries(), counts, strict=True):
        if pool.num_threads == count:
            continue
        pool.set_num_threads(count)
        give_up = getattr(pool, "clear_controlling_thread", None)
        if give_up is not None:
            give_up()


class _LimitToken:
    """Token of a caller inside the limit."""

    __slots__ = ("__weakref__",)


class _Limit:
    """The BLAS thread count, which is global to the process. Runs limit it to one; when the last of
    them ends, it is restored. A run that an interrupt ends between any two steps is forgotten with
    its frame.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: weakref.WeakSet[_LimitToken] = weakref.WeakSet()
        self._before: list[int] = []
        """The counts before the limit; empty if there is no limit."""

    def begin_anew(self) -> None:
        """Reset the state in a forked child: the runs belong to the parent, and another thread may
        hold the lock. The limits stay until a run in the child ends, because a library must not be
        called in a fork handler.
        """
        self._lock = threading.Lock()
        self._inside = weakref.WeakSet()

    @contextmanager
    def to_one(self) -> Iterator[None]:
        me = _LimitToken()
        try:
            with self._lock:
                self._inside.add(me)
                if not self._before:
                    self._before = [pool.num_threads for pool in blas.libraries()]
                _set([1] * len(self._before))
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
def products_alone() -> Iterator[None]:
    """Limit numpy's BLAS to one thread per call inside the block, unless the user has set a
    count.
    """
    if blas.is_chosen():
        yield
        return
    with _limit.to_one():
        yield
