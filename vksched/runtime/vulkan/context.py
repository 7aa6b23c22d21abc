"""Kompute's objects behind a small typed door: contexts, buffers, pipelines, recordings.

    Context -> storage(), host() -> pipeline() -> recording(): begin, dispatch, copy, barrier, end
                                                               submit, wait, done, duration_s

What a recording or pipeline uses lives as long as it does, and a device as long as any view
of its mapped memory: nothing can be pulled from under a submission. Examples:
tests/runtime/test_companion.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DeviceError, OutOfMemory, ShaderError
from ...trace import VkschedWarning
from ..fork import Owner, in_child
from . import binding
from .binding import describe_devices, errors, kp_errors
from .recording import CLOSE_LIMIT_S, Pipeline, Recording

__all__ = [
    "CLOSE_LIMIT_S",
    "Buffer",
    "Context",
    "Counters",
    "HostBuffer",
    "Pipeline",
    "Recording",
]

MAX_COMPILERS = 8
"""Threads that compile pipelines."""

Wanted = tuple[bytes, tuple[int, ...], int, int]
"""SPIR-V, the values of its constants, how many buffers it is bound to, bytes of push constants."""

MAX_BUFFER_BYTES = (1 << 32) - 4
"""kp counts bytes in 32 bits."""

_live_bytes: defaultdict[int, int] = defaultdict(int)
_live_lock = threading.Lock()
"""By physical device, as several contexts may share one."""

_devices: weakref.WeakSet[_Device] = weakref.WeakSet()
"""All that were opened, for a forked child to leave alone."""


def _count_live(index: int, size_bytes: int) -> None:
    with _live_lock:
        _live_bytes[index] += size_bytes


# -- context ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counters:
    """What a context has done since it was opened; freeing does not count back."""

    buffers: int = 0
    buffer_bytes: int = 0
    pipelines: int = 0
    recordings: int = 0
    submissions: int = 0
    fence_waits: int = 0


class _Device:
    """What must be taken down in order when a context ends, whoever ends it."""

    def __init__(self, index: int, name: str, manager: Any) -> None:
        self.name = name
        self.manager = manager
        self.owner = Owner()
        self.lock = threading.RLock()
        self.calls = 0
        """Native calls under way without the GIL: the device must not end below them."""
        self.idle = threading.Condition(self.lock)
        self.closed = False
        self.index = index
        self.recordings: weakref.WeakSet[Recording] = weakref.WeakSet()
        self.mappings: weakref.WeakSet[_Mapping] = weakref.WeakSet()
        self.natives: weakref.WeakSet[Buffer | Pipeline] = weakref.WeakSet()
        _devices.add(self)

    def require_open(self, stage: str) -> None:
        if self.closed:
            raise self.closed_error(stage, "device")

    def closed_error(self, stage: str, what: str) -> DeviceError:
        """Returns the error for the use of something closed, as all is in a forked child."""
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
                self.idle.wait_for(lambda: not self.calls, max(0.0, limit - time.monotonic()))
                self.destroy_if_unused()
                return
            # The device still works on them: freeing would crash the driver, now or at exit.
            self._keep_natives()
        warnings.warn(
            f"[close] {self.name}: submissions did not end within {CLOSE_LIMIT_S:.0f} s; their "
            "memory is kept",
            VkschedWarning,
            stacklevel=3,
        )

    def abandon(self) -> None:
        """In a forked child: it is the parent's, and its driver is not there to be asked."""
        self.lock = threading.RLock()
        self.idle, self.calls = threading.Condition(self.lock), 0
        self.closed = True
        if self.manager is not None:
            self._keep_natives()
            for owner in (*self.natives, *self.recordings):
                owner._native = None

    def _keep_natives(self) -> None:
        """Has no native object destroyed, ever."""
        for owner in (*self.natives, *self.recordings):
            binding.companion.leak(owner._native)
        for recording in self.recordings:
            binding.companion.leak(recording._sequence)
        for mapping in self.mappings:
            binding.companion.leak(mapping._tensor)
        binding.companion.leak(self.manager)
        self.manager = None

    def destroy_if_unused(self) -> None:
        """Ends the device, or leaves that to the last view of its memory, or the last call."""
        with self.lock:
            unused = not len(self.mappings) and not self.calls
            if self.closed and self.manager is not None and unused:
                self.manager.destroy()
                self.manager = None

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keeps the device from ending below a native call."""
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
        """Ends the device whatever views there are: nobody reads them any more."""
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


class Context:
    """One opened logical device; opening the same index again gives another one.

    Raises:
        DeviceError: there is no such device, or it cannot be opened.
    """

    def __init__(self, index: int, name: str) -> None:
        devices = describe_devices()
        if not 0 <= index < len(devices):
            raise DeviceError(
                f"[open] {name}: expected an index below {len(devices)}, got {index}; try "
                "`vksched devices`"
            )
        described = devices[index]
        if not described["usable"]:
            raise DeviceError(f"[open] {name} ({described['name']}): {described['why']}")
        limits = described["limits"]
        self.name = name
        self.index = index
        self.counters = Counters()
        self.max_buffer_bytes: int = min(
            MAX_BUFFER_BYTES,
            limits["maxStorageBufferRange"],
            limits["maxMemoryAllocationSize"] or MAX_BUFFER_BYTES,
        )
        with kp_errors("open", name):
            manager = binding.kp.Manager(index, [], [])
            binding.companion.require_open(manager)
        self._device = _Device(index, name, manager)
        self._finalizer = weakref.finalize(self, _Device.destroy_at_exit, self._device)

    def storage(self, words: int) -> Buffer:
        """Returns device-local memory of 32-bit words with any content; the host cannot see it."""
        # np.empty takes address space only: kp never reads a storage tensor's data.
        return Buffer(self, self._allocate(words, "storage"), words)

    def host(self, words: int, zeroed: bool = True, read: bool = False) -> HostBuffer:
        """Returns host-visible coherent memory of 32-bit words, with any content or zeroed.

        read: whether the host reads it, too, and so wants it in its caches.
        """
        binding.companion.prefer_cached(read)
        try:
            native = self._allocate(words, "host", zeroed)
        finally:
            binding.companion.prefer_cached(False)
        return HostBuffer(self, native, words)

    def make_pipelines(self, wanted: Collection[Wanted]) -> None:
        """Compiles shaders for the pipelines to come, as far as they are not there, on several
        threads and without the GIL. What fails here fails again, with its reason, in `pipeline`.
        """
        self._device.require_open("pipelines")
        with errors("pipelines", self.name):
            threads = min(MAX_COMPILERS, os.cpu_count() or 1)
            binding.companion.make_pipelines(self._device.manager, list(wanted), threads)

    def pipeline(
        self,
        spirv: bytes,
        buffers: Sequence[Buffer],
        constants: Sequence[int],
        push_bytes: int,
    ) -> Pipeline:
        """Returns a shader bound to buffers; constants are the specialisation ids 0, 1, ..."""
        self._device.require_open("pipeline")
        if not spirv or len(spirv) % 4:
            raise ShaderError(f"[pipeline] expected SPIR-V of 32-bit words, got {len(spirv)} bytes")
        if not buffers or push_bytes % 4:
            raise ShaderError(
                "[pipeline] expected at least one buffer and push constants of 32-bit words, got "
                f"{len(buffers)} buffers and {push_bytes} bytes"
            )
        for buffer in buffers:
            if buffer._device is not self._device:
                raise DeviceError(
                    f"[pipeline] {self.name}: expected its own buffers, got another's"
                )
        with kp_errors("pipeline", self.name):
            native = binding.kp.Manager.algorithm(
                self._device.manager,
                [buffer._open_native() for buffer in buffers],
                spirv,
                (1, 1, 1),
                np.array(constants, dtype=np.uint32),
                np.zeros(push_bytes // 4, dtype=np.uint32),
            )
        with self._device.lock:
            self.counters.pipelines += 1
        return Pipeline(self, native)

    def recording(self) -> Recording:
        """Returns an empty recording."""
        self._device.require_open("recording")
        with kp_errors("recording", self.name):
            sequence = self._device.manager.sequence()
            native = binding.companion.Recording(self._device.manager, sequence)
        with self._device.lock:
            self.counters.recordings += 1
        return Recording(self, native, sequence)

    def free_bytes(self) -> int:
        """Returns what is left of the largest device-local heap.

        The driver's budget less its usage; where it keeps none, the heap less what we allocated.
        """
        self._device.require_open("memory")
        with errors("memory", self.name):
            heaps = binding.companion.memory_info(self._device.manager)
        heap = max(heaps, key=lambda h: (h["device_local"], h["size_bytes"]))
        if heap["budget_bytes"] is not None:
            return max(0, int(heap["budget_bytes"]) - int(heap["usage_bytes"]))
        return max(0, int(heap["size_bytes"]) - _live_bytes[self.index])

    def kept_open(self) -> contextlib.AbstractContextManager[None]:
        """Returns what keeps the device from ending, whoever closes it: for what takes long
        without the GIL on a thread that no interrupt stops.
        """
        return self._device.kept_open()

    def pending(self, apart: Recording | None = None) -> bool:
        """Returns whether a submission is under way, apart from one recording's."""
        with self._device.lock:
            natives = [r._native for r in self._device.recordings if r is not apart]
        return any(native is not None and native.pending for native in natives)

    def close(self) -> None:
        """Waits for submissions under way, at most CLOSE_LIMIT_S, and ends the device.

        Views of mapped memory stay readable: the device then ends with the last of them.
        """
        self._device.close()

    def _allocate(self, words: int, kind: str, zeroed: bool = False) -> Any:
        self._device.require_open(kind)
        size_bytes = 4 * words
        if words < 1:
            raise DeviceError(f"[{kind}] {self.name}: expected at least one word, got {words}")
        if size_bytes > self.max_buffer_bytes:
            raise OutOfMemory(
                f"[{kind}] {self.name}: expected at most {self.max_buffer_bytes} bytes in one "
                f"buffer, got {size_bytes}; try several buffers"
            )
        with errors(kind, self.name):
            sizes = [h["size_bytes"] for h in binding.companion.memory_info(self._device.manager)]
        if size_bytes > max(sizes):
            raise OutOfMemory(
                f"[{kind}] {self.name}: expected at most {max(sizes)} bytes, its largest heap, got "
                f"{size_bytes}; try another device"
            )
        with kp_errors(kind, self.name):
            data = np.zeros(words, np.uint32) if zeroed else np.empty(words, np.uint32)
            types = {"storage": binding.kp.TensorTypes.storage, "host": binding.kp.TensorTypes.host}
            tensor = self._device.manager.tensor_t(data, types[kind])
        with self._device.lock:
            self.counters.buffers += 1
            self.counters.buffer_bytes += size_bytes
        return tensor


# -- memory ----------------------------------------------------------------------------------------


class Buffer:
    """Device memory of 32-bit words."""

    def __init__(self, context: Context, native: Any, words: int) -> None:
        self.context = context
        self.words = words
        self._device = context._device
        self._native: Any = native
        with self._device.lock:
            self._device.natives.add(self)
            _count_live(self._device.index, 4 * words)
        self._finalizer = weakref.finalize(self, _count_freed, self._device, 4 * words)
        self._finalizer.atexit = False

    @property
    def size_bytes(self) -> int:
        return 4 * self.words

    def close(self) -> None:
        """Gives the memory back, at once or with the last pipeline that uses it."""
        self._native = None
        self._finalizer()

    @contextlib.contextmanager
    def mapped(self) -> Iterator[npt.NDArray[np.uint32] | None]:
        """The memory itself, to be written while no submission uses it; None where the host cannot
        see it.
        """
        native, manager = self._open_native(), self._device.manager
        with errors("map", self.context.name):
            view = binding.companion.map_memory(manager, native)
        try:
            yield None if view is None else np.frombuffer(view, np.uint32)
        finally:
            if view is not None:
                binding.companion.unmap_memory(manager, native)

    def _open_native(self) -> Any:
        if self._native is None:
            raise self._device.closed_error("buffer", "buffer")
        return self._native


class HostBuffer(Buffer):
    """Mapped memory of 32-bit words, seen by host and device alike."""

    def __init__(self, context: Context, native: Any, words: int) -> None:
        super().__init__(context, native, words)
        self._array: npt.NDArray[np.uint32] | None = np.asarray(_Mapping(context._device, native))

    @property
    def array(self) -> npt.NDArray[np.uint32]:
        """The memory itself, writable; barriers between "host" and "shader" order the accesses."""
        if self._array is None:
            raise self._device.closed_error("buffer", "buffer")
        return self._array

    def close(self) -> None:
        """Gives the memory back, at once or with the last view or pipeline that uses it."""
        self._array = None
        super().close()


class _Mapping:
    """The owner that numpy keeps for each view of mapped memory; keeps its device open."""

    def __init__(self, device: _Device, tensor: Any) -> None:
        data: npt.NDArray[np.uint32] = tensor.data()
        self.__array_interface__ = data.__array_interface__
        self._tensor = tensor
        device.mappings.add(self)
        weakref.finalize(self, device.destroy_if_unused).atexit = False


def _count_freed(device: _Device, size_bytes: int) -> None:
    with device.lock:
        _count_live(device.index, -size_bytes)
