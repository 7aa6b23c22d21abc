"""DeviceHandle: owns an open device and destroys its objects in order.

Buffers, pipelines and recordings register here; a device lives as long as any view of its mapped
memory. Examples: tests/runtime/test_companion.py.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ...common.errors import DeviceError
from ...common.fork_guard import Owner, in_child
from ...common.user_warning import VkschedWarning
from . import binding

CLOSE_LIMIT_S = 10.0
"""Maximum time that closing waits for submissions in flight; after that their memory is leaked."""

live_bytes: defaultdict[int, int] = defaultdict(int)
"""Allocated bytes by physical device, which several contexts may share."""
_live_lock = threading.Lock()


_devices: weakref.WeakSet[DeviceHandle] = weakref.WeakSet()
"""All open devices, which a forked child must not use."""


def count_live(index: int, size_bytes: int) -> None:
    with _live_lock:
        live_bytes[index] += size_bytes


class Native(Protocol):
    """An owner of a native object: a buffer, a pipeline or a recording."""

    _native: Any


class InFlight(Native, Protocol):
    """An object that may be in flight on the device: a recording."""

    _sequence: Any

    def _end(self, limit_s: float) -> bool: ...


class MappedMemory(Protocol):
    """A view of mapped memory in numpy, which keeps the memory alive."""

    _tensor: Any


@dataclass(slots=True)
class Counters:
    """Counters of a context since it was opened; freeing does not decrease them."""

    buffers: int = 0
    buffer_bytes: int = 0
    pipelines: int = 0
    recordings: int = 0
    submissions: int = 0
    fence_waits: int = 0
    imports: int = 0


class DeviceHandle:
    """Destroys the objects of a context in order, independent of the thread that closes it."""

    def __init__(self, index: int, name: str, manager: Any) -> None:
        self.name = name
        self.manager = manager
        self.owner = Owner()
        self.counters = Counters()
        self.lock = threading.RLock()
        self.calls = 0
        """Number of native calls in progress without the GIL: the device must not be destroyed
        meanwhile.
        """
        self.idle = threading.Condition(self.lock)
        self.closed = False
        self.index = index
        self.recordings: weakref.WeakSet[InFlight] = weakref.WeakSet()
        self.mappings: weakref.WeakSet[MappedMemory] = weakref.WeakSet()
        self.natives: weakref.WeakSet[Native] = weakref.WeakSet()
        self.retained: list[object] = []
        """Objects that hanging submissions may still use, including the caller's memory."""
        _devices.add(self)

    def require_open(self, stage: str) -> None:
        if self.closed:
            raise self.closed_error(stage, "device")

    def closed_error(self, stage: str, what: str) -> DeviceError:
        """Return the error for the use of a closed object; in a forked child all are closed."""
        self.owner.require(self.name)
        return DeviceError(f"[{stage}] {self.name}: expected an open {what}, got a closed one")

    def close(self) -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
            limit = time.monotonic() + CLOSE_LIMIT_S
            ended = [r._end(max(0.0, limit - time.monotonic())) for r in list(self.recordings)]
            if all(ended):
                self.retained.clear()  # before the device, which imported memory must not outlive
                self.idle.wait_for(lambda: not self.calls, max(0.0, limit - time.monotonic()))
                self.destroy_if_unused()
                return
            # The device still uses them: freeing would crash the driver, now or at exit.
            self._keep_natives()
        warnings.warn(
            f"[close] {self.name}: submissions did not end within {CLOSE_LIMIT_S:.0f} s; their "
            "memory is not freed",
            VkschedWarning,
            stacklevel=3,
        )

    def abandon(self) -> None:
        """Abandon the device in a forked child: it belongs to the parent, whose driver cannot be
        called.
        """
        self.lock = threading.RLock()
        self.idle, self.calls = threading.Condition(self.lock), 0
        self.closed = True
        if self.manager is not None:
            self._keep_natives()
            for owner in (*self.natives, *self.recordings):
                owner._native = None

    def _keep_natives(self) -> None:
        """Leak all native objects and the retained objects."""
        binding.companion.leak(self.retained)
        for owner in (*self.natives, *self.recordings):
            binding.companion.leak(owner._native)
        for recording in self.recordings:
            binding.companion.leak(recording._sequence)
        for mapping in self.mappings:
            binding.companion.leak(mapping._tensor)
        binding.companion.leak(self.manager)
        self.manager = None

    def destroy_if_unused(self) -> None:
        """Destroy the device, unless a view of its memory or a call is left; the last one then
        destroys it.
        """
        with self.lock:
            unused = not len(self.mappings) and not self.calls
            if self.closed and self.manager is not None and unused:
                self.manager.destroy()
                self.manager = None

    @contextlib.contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keep the device alive during a native call."""
        with self.lock:
            self.calls += 1
        try:
            yield
        finally:
            with self.lock:
                self.calls -= 1
                self.idle.notify_all()
                self.destroy_if_unused()

    def destroy_at_exit(self) -> None:
        """Destroy the device at exit regardless of views, which are no longer read."""
        with self.lock:
            self.close()
            self.mappings.clear()
            self.destroy_if_unused()


@in_child
def _after_fork() -> None:
    global _live_lock
    _live_lock = threading.Lock()
    for device in list(_devices):
        device.abandon()
