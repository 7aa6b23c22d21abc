"""DeviceMemory: frees the graphs and saved values of PyTorch on the devices of one scheduler.

    dropped model --finalizers--> unused graphs, unused states --next compilation--> freed
    OutOfMemory, or a full GPU --> saved values that no backward pass has read, then the least
                                   recently used ones --> freed

Examples: tests/torch_backend/test_torch_memory.py.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from ..common.errors import OutOfMemory, PlanError
from ..engine.executable import CompiledGraph
from ..ir.tensor import Tensor
from ..scheduler.scheduler import Scheduler
from .weights import WeightTable

T = TypeVar("T")


class Idle(Protocol):
    """Saved values on devices that no call uses."""

    was_read: bool
    used: int

    @property
    def states(self) -> Collection[Tensor]: ...


class SavesValues(Protocol):
    """A program whose specialisations can be dropped."""

    def idle_values(self) -> list[Idle]:
        """Return the saved values that no call uses."""

    def drop(self, states: Collection[Tensor]) -> None:
        """Forget the specialisations that write or read any of some states."""


class DeviceMemory:
    """The memory of PyTorch's graphs on one scheduler.

    Attributes
    ----------
    unused, unused_states
        Compiled graphs, and states of saved values and parameters, that nothing refers to.
    weights
        The parameters of all graphs.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = weakref.ref(scheduler)
        self.unused: deque[CompiledGraph] = deque()
        self.unused_states: deque[list[Tensor]] = deque()
        self.weights = WeightTable(scheduler, self.unused_states.append)
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._programs: weakref.WeakSet[SavesValues] = weakref.WeakSet()
        scheduler.graphs.preparing.opened.holders.add(self)

    def add(self, program: SavesValues) -> None:
        """Add a program while it exists."""
        with self._lock:
            self._programs.add(program)

    def free_unused(self) -> bool:
        """Free the graphs and states that nothing refers to; return True if there were any."""
        scheduler, found = self._scheduler(), False
        if scheduler is None or scheduler.graphs.closing:
            self.unused.clear()
            self.unused_states.clear()
            return False
        self.weights.forget_freed()
        while (graph := _popleft(self.unused)) is not None:
            graph.close()
            found = True
        for _ in range(len(self.unused_states)):
            states = _popleft(self.unused_states)
            while states:
                try:
                    scheduler.delete_state(states[-1])
                except PlanError:  # a backward graph that will be freed later
                    self.unused_states.append(states)
                    break
                states.pop()
                found = True
        return found

    @contextmanager
    def on_devices(self) -> Iterator[None]:
        """Let compilations of this thread raise OutOfMemory where they would use less memory, or
        other devices: the caller compiles another graph then.
        """
        self._thread.is_strict = True
        try:
            yield
        finally:
            self._thread.is_strict = False

    def can_shrink(self) -> bool:
        """Return True if `shrink` would free memory or raise its error."""
        return self._is_strict or bool(self._idle(self._listed()))

    def shrink(self, error: OutOfMemory) -> bool:
        """Free the saved values that are needed last: those that no backward pass has read, then
        the least recently used ones. Return False if there are none.
        """
        programs = self._listed()
        idle = self._idle(programs)
        if not idle:
            if self._is_strict:
                raise error
            return False
        states = frozenset(min(idle, key=lambda values: (values.was_read, values.used)).states)
        del idle  # the states are unused only after the last reference
        for program in programs:
            program.drop(states)
        self.free_unused()
        return True

    @property
    def _is_strict(self) -> bool:
        return getattr(self._thread, "is_strict", False)

    def _listed(self) -> list[SavesValues]:
        with self._lock:
            return list(self._programs)

    def _idle(self, programs: list[SavesValues]) -> list[Idle]:
        return [values for program in programs for values in program.idle_values()]


def _popleft(items: deque[T]) -> T | None:
    """Return the first item, or None: another thread may have taken the last one."""
    try:
        return items.popleft()
    except IndexError:
        return None
