"""Memory holders: objects that free device memory of a scheduler on demand.

    compile ---------> free_unused() of each holder
    OutOfMemory, or a plan that avoids a full GPU
      ---------------> free_unused(), then shrink() of one holder; the compilation is repeated

The garbage collector must not close graphs, because it may run while a lock is held. So a holder
collects them, and the next compilation closes them. Examples: tests/engine/test_memory_holders.py.
"""

from __future__ import annotations

import gc
from typing import Protocol

from ..common.errors import OutOfMemory
from ..plan.explain.cpu_fallback import find_full_gpu
from ..plan.plan import Plan


class DeviceFull(OutOfMemory):
    """A plan that avoids a full GPU, although holders can free memory of it."""


class MemoryHolder(Protocol):
    """An owner of graphs and states of one scheduler."""

    def free_unused(self) -> bool:
        """Free memory that nothing refers to; return True if there was any. The caller may hold
        locks of the scheduler.
        """

    def can_shrink(self) -> bool:
        """Return True if `shrink` would free memory or raise its error. The caller holds locks."""

    def shrink(self, error: OutOfMemory) -> bool:
        """Free a part of the memory that is needed again only after another compilation; return
        False if there is none. Raise the error to end the compilation, before other devices are
        tried.
        """


class MemoryHolders:
    """The memory holders of one scheduler."""

    def __init__(self) -> None:
        self._holders: list[MemoryHolder] = []

    def add(self, holder: MemoryHolder) -> None:
        """Add a holder for the life of the scheduler."""
        self._holders.append(holder)

    def free_unused(self) -> bool:
        """Free memory that nothing refers to; return True if there was any."""
        freed = [holder.free_unused() for holder in self._holders]
        return any(freed)

    def require_room(self, plan: Plan) -> None:
        """Raise DeviceFull if a plan avoids a full GPU, and holders can free memory."""
        if any(holder.can_shrink() for holder in self._holders):
            note = find_full_gpu(plan)
            if note:
                raise DeviceFull(f"[plan] {note}")

    def shrink(self, error: OutOfMemory) -> bool:
        """Free memory after an allocation failed; return True if another try may succeed."""
        if not self._holders:
            return False
        gc.collect()  # graphs in reference cycles
        freed = self.free_unused() or any(holder.shrink(error) for holder in self._holders)
        return freed or isinstance(error, DeviceFull)  # another thread may have freed it
