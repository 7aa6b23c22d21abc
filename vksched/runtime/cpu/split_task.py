"""Split tasks of the CPU: which thread computes a split, when, and its result.

    Task   submitted --> the worker, or the thread that waits --> seconds, or an error
    ComputeLock   only one of these threads computes at a time
    Gate   the states as the split sees them: shut when the run is abandoned

Examples: tests/runtime/test_own_thread.py, tests/engine/test_state_races.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...common.dtypes import NDArray
from ..state_store import CpuStates
from .worker import Job

_POLL_S = 2e-4


class StateGate:
    """The states as one split sees them. When it is shut, the split goes on but can no longer
    write.
    """

    def __init__(self, states: CpuStates) -> None:
        self._states = states
        self._lock = threading.Lock()
        self._open = True

    def view(self, key: object) -> NDArray:
        return self._states.view(key)

    def write(self, key: object, array: NDArray) -> None:
        with self._lock:
            if self._open:
                self._states.write(key, array)

    def change(self, keys: Sequence[object], write: Callable[[list[NDArray]], None]) -> None:
        with self._lock:
            if self._open:
                self._states.change(keys, write)

    def shut(self) -> None:
        with self._lock:
            self._open = False


class ComputeLock:
    """A lock for computing: held by the device's worker or by a waiting thread."""

    def __init__(self) -> None:
        self._holder: dict[str, int] = {}
        self._wanted = False
        """True while the worker waits for the lock, which no other thread can acquire before it."""

    def take(self) -> bool:
        """Acquire the lock if it is free and the worker does not wait for it; return True if this
        thread holds it.
        """
        me = threading.get_ident()
        return not self._wanted and self._holder.setdefault("turn", me) == me

    def wait(self) -> None:
        """Acquire the lock, waiting for it. Only the worker calls this, which no interrupt reaches.
        Other threads hold the lock briefly.
        """
        self._wanted = True
        me = threading.get_ident()
        while self._holder.setdefault("turn", me) != me:
            time.sleep(_POLL_S)
        self._wanted = False

    def release(self) -> None:
        """Release the lock if this thread holds it. An interrupt may occur between any two steps,
        therefore no primitive lock is used, which could stay acquired.
        """
        if self._holder.get("turn") == threading.get_ident():
            del self._holder["turn"]


class Task:
    """A submitted split. job: its job at the worker; None if no thread computes it yet or a waiting
    thread does. seconds: its run time. error: why it failed.
    """

    __slots__ = ("error", "gate", "job", "seconds")

    def __init__(self, gate: StateGate) -> None:
        self.gate = gate
        self.job: Job | None = None
        self.seconds: float | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        if self.job is not None:
            return self.job.done
        return self.seconds is not None or self.error is not None

    def result(self) -> float:
        """Return the run time of a finished task; raise its error if it failed."""
        if self.job is not None:
            return self.job.result()
        if self.error is not None:
            raise self.error
        assert self.seconds is not None
        return self.seconds
