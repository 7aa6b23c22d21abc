"""The threads of numpy's products while the CPU backend runs: one, as it divides products itself.

    run ---- one thread for the library ---- end ---- as many as before ----> the user's products

Why: vksched/ops/lowering/blas.py. Who sets OPENBLAS_NUM_THREADS or its like has chosen, and nothing
is touched. Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ...common.fork_guard import in_child
from ...ops.lowering import blas


def _set(counts: list[int]) -> None:
    """Set the threads of each library. Newer threadpoolctl lets the first thread that sets
    them do so alone as long as it lives, unless that thread gives the right up.
    """
    for pool, count in zip(blas.libraries(), counts, strict=True):
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
    """The threads of numpy's products, which all threads of the process share: runs limit them to
    one until the last of them ends, then they are as they were. One that an interrupt ends between
    any two steps is forgotten with its frame.
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
    def to_one(self) -> Iterator[None]:
        me = _Inside()
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
    """Within, each of numpy's products takes one thread, unless the user has said how many."""
    if blas.is_chosen():
        yield
        return
    with _limit.to_one():
        yield
