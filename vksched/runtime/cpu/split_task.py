"""A split that the CPU is to compute: who does it, when, and what becomes of it.

    Task   submitted --> the worker, or the thread that waits --> seconds, or an error
    ComputeLock   one thread of them computes at a time
    Gate   the states as the split sees them: shut where nobody waits for it any more

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


class Gate:
    """The states as one split sees them: given up, it goes on, but writes no more."""

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
    """Whose turn it is to compute: that of the device's worker, or of a thread that waits."""

    def __init__(self) -> None:
        self._holder: dict[str, int] = {}
        self._wanted = False
        """Whether the worker waits for its turn, before which nobody else has another one."""

    def take(self) -> bool:
        """Take the turn if nobody has it or waits for it; returns whether this thread has it."""
        me = threading.get_ident()
        return not self._wanted and self._holder.setdefault("turn", me) == me

    def wait(self) -> None:
        """Take the turn as soon as it can be had; for the worker alone, which nobody interrupts.
        Who has it is brief.
        """
        self._wanted = True
        me = threading.get_ident()
        while self._holder.setdefault("turn", me) != me:
            time.sleep(_POLL_S)
        self._wanted = False

    def release(self) -> None:
        """Give the turn back where this thread has it. An interrupt may come between any two
        steps, so there is no lock that could be left held.
        """
        if self._holder.get("turn") == threading.get_ident():
            del self._holder["turn"]


class Task:
    """A split that was submitted. job: at the worker; None while nobody has been asked to
    compute it, and where a thread that waits does so. seconds: what that took. error: why it did
    not end.
    """

    __slots__ = ("error", "gate", "job", "seconds")

    def __init__(self, gate: Gate) -> None:
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
        """Return the seconds of a task that is done; raises what it raised."""
        if self.job is not None:
            return self.job.result()
        if self.error is not None:
            raise self.error
        assert self.seconds is not None
        return self.seconds
