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
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...common.env import word_of
from ...common.errors import DeviceError, OutOfMemory, ShaderError
from . import binding
from .binding import describe_devices, errors, kp_errors
from .buffers import Buffer, HostBuffer
from .command_recording import Pipeline, Recording
from .device_handle import Counters, DeviceHandle, live_bytes

__all__ = [
    "Buffer",
    "Context",
    "Counters",
    "HostBuffer",
    "Pipeline",
    "Recording",
]

MAX_COMPILERS = 8
"""Threads that compile pipelines."""

Wanted = tuple[bytes, tuple[int, ...], int, int, int]
"""SPIR-V, the values of its constants, how many buffers it is bound to, bytes of push constants and
the size that its subgroups are to have, or 0.
"""

MAX_BUFFER_BYTES = (1 << 32) - 4
"""kp counts bytes in 32 bits."""


COPY_PATHS = ("own", "same", "off")
"""What VKSCHED_COPY_QUEUE may be."""


def is_same_queue() -> bool:
    """Return whether copies of their own are to go to the queue of all others, for tests."""
    return word_of("VKSCHED_COPY_QUEUE", COPY_PATHS) == "same"


def _open(described: dict[str, Any], index: int, name: str, copy_queue: bool) -> tuple[str, Any]:
    """Return where recordings of copies go, and the open device."""
    path = word_of("VKSCHED_COPY_QUEUE", COPY_PATHS)
    compute, copies = (described.get(f"{kind}_queue_family") for kind in ("compute", "copy"))
    knows = hasattr(
        binding.companion, "timeline_semaphores_enabled"
    )  # else it was built before there were queues
    if knows and copy_queue and copies is not None and path in ("", "own"):
        with contextlib.suppress(DeviceError), kp_errors("open", name):
            manager = binding.kp.Manager(index, [compute, copies], [])
            binding.companion.require_open(manager)
            if binding.companion.timeline_semaphores_enabled(manager):
                return "own", manager
            manager.destroy()
    with kp_errors("open", name):
        manager = binding.kp.Manager(index, [], [])
        binding.companion.require_open(manager)
    ordered = knows and path == "same" and binding.companion.timeline_semaphores_enabled(manager)
    return ("same" if ordered else ""), manager


# -- context ---------------------------------------------------------------------------------------


class Context:
    """One opened logical device; opening the same index again gives another one.

    featured: whether it opened with what it has beyond Vulkan 1.1, as drivers list it. copies:
    where recordings of copies go: "own", a queue that only copies; "same", the queue of all others;
    "", there are none, as on drivers without timeline semaphores. copy_queue: whether a queue that
    only copies is opened where there is one. robust: whether what kernels read or write beyond a
    buffer stays away from the memory of others, see `binding.robust_access`.

    Raises:
        DeviceError: there is no such device, or it cannot be opened.
    """

    def __init__(self, index: int, name: str, copy_queue: bool = True) -> None:
        devices = describe_devices(known=True)
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
        self.pci: str = described["pci_bus"] or ""
        self.import_alignment: int = described.get("import_alignment") or 0
        """Of host memory that `imported` takes, in bytes; 0: it takes none."""
        self.is_host: bool = described["type"] == "cpu"
        """Whether its memory is the host's, as that of CPU drivers is."""
        self.max_buffer_bytes: int = min(
            MAX_BUFFER_BYTES,
            limits["maxStorageBufferRange"],
            limits["maxMemoryAllocationSize"] or MAX_BUFFER_BYTES,
        )
        knows = hasattr(binding.companion, "set_robust_access")  # else it was built before
        if knows:
            binding.companion.set_robust_access(binding.robust.get())
        self.copies, manager = _open(described, index, name, copy_queue)
        self.featured: bool = binding.companion.features_enabled(manager)
        self.robust: bool = knows and binding.companion.robust_access_enabled(manager)
        self._device = DeviceHandle(index, name, manager)
        self._finalizer = weakref.finalize(self, DeviceHandle.destroy_at_exit, self._device)

    @property
    def counters(self) -> Counters:
        """What the context has done since it was opened."""
        return self._device.counters

    def storage(self, words: int) -> Buffer:
        """Return device-local memory of 32-bit words with any content; the host cannot see it."""
        # np.empty takes address space only: kp never reads a storage tensor's data.
        return Buffer(self._device, self._allocate(words, "storage"), words)

    def host(self, words: int, zeroed: bool = True, read: bool = False) -> HostBuffer:
        """Return host-visible coherent memory of 32-bit words, with any content or zeroed.

        read: whether the host reads it, too, and so wants it in its caches.
        """
        binding.companion.set_prefer_cached(read)
        try:
            native = self._allocate(words, "host", zeroed)
        finally:
            binding.companion.set_prefer_cached(False)
        return HostBuffer(self._device, native, words)

    def make_pipelines(self, wanted: Collection[Wanted]) -> None:
        """Compile shaders for the pipelines to come, as far as they are not there, on several
        threads and without the GIL. What fails here fails again, with its reason, in `pipeline`.
        """
        self._device.require_open("pipelines")
        with errors("pipelines", self.name):
            threads = min(MAX_COMPILERS, os.cpu_count() or 1)
            binding.companion.compile_pipelines(self._device.manager, list(wanted), threads)

    def pipeline(
        self,
        spirv: bytes,
        buffers: Sequence[Buffer],
        constants: Sequence[int],
        push_bytes: int,
        subgroup: int = 0,
    ) -> Pipeline:
        """Return a shader bound to buffers; constants are the specialisation ids 0, 1, ...

        subgroup: the size that its subgroups are to have, one of the device's `subgroup_sizes`; 0:
            any.
        """
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
        binding.companion.set_required_subgroup_size(subgroup)
        try:
            with kp_errors("pipeline", self.name):
                native = binding.kp.Manager.algorithm(
                    self._device.manager,
                    [buffer._open_native() for buffer in buffers],
                    spirv,
                    (1, 1, 1),
                    np.array(constants, dtype=np.uint32),
                    np.zeros(push_bytes // 4, dtype=np.uint32),
                )
        finally:
            binding.companion.set_required_subgroup_size(0)
        with self._device.lock:
            self._device.counters.pipelines += 1
        return Pipeline(self._device, native)

    def recording(self, copies: bool = False) -> Recording:
        """Return an empty recording. copies: it copies only, beside others where there is a queue
        for that.
        """
        self._device.require_open("recording")
        manager, queue = self._device.manager, int(copies and self.copies == "own")
        with kp_errors("recording", self.name):
            sequence = manager.sequence(queue)
            more = (queue, True) if self.copies else ()
            native = binding.companion.Recording(manager, sequence, *more)
        with self._device.lock:
            self._device.counters.recordings += 1
        return Recording(self._device, native, sequence)

    def imported(self, address: int, size_bytes: int) -> Any:
        """Return pages of the host's as something to copy from (`Recording.copy_imported`), which
        are to stay as they are until it is gone; None where the driver does not take them.
        """
        self._device.require_open("import")
        if size_bytes > self.max_buffer_bytes:
            return None
        with contextlib.suppress(binding.companion.VulkanError):
            native = binding.companion.HostImport(self._device.manager, address, size_bytes)
            with self._device.lock:
                self._device.counters.imports += 1
            return native
        return None

    def free_bytes(self) -> int:
        """Return the free bytes of the largest device-local heap.

        That is the driver's budget less its usage. A driver without a budget: the heap less what
        we allocated.
        """
        total, used, _ = self.memory_bytes()
        return total - used

    def memory_bytes(self) -> tuple[int, int, int]:
        """Return the size of the largest device-local heap, how much of it is not free, and how
        much of that is this process's.
        """
        self._device.require_open("memory")
        with errors("memory", self.name):
            heaps = binding.companion.memory_info(self._device.manager)
        heap = max(heaps, key=lambda h: (h["device_local"], h["size_bytes"]))
        total, own = int(heap["size_bytes"]), live_bytes[self.index]
        free = total - own
        if heap["budget_bytes"] is not None:
            own = int(heap["usage_bytes"])
            free = int(heap["budget_bytes"]) - own
        return total, total - max(0, free), own

    def kept_open(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that keeps the device open, even when somebody closes it. It is for
        long work without the GIL, on a thread that no interrupt stops.
        """
        return self._device.kept_open()

    def keep(self, *used: object) -> None:
        """Keep what a submission that hangs may still use until the device has ended, if ever."""
        self._device.kept += used

    def pending(self, apart: Recording | None = None) -> bool:
        """Return whether a submission is under way, apart from one recording's."""
        with self._device.lock:
            natives = [r._native for r in self._device.recordings if r is not apart]
        return any(native is not None and native.pending for native in natives)

    def close(self) -> None:
        """Wait for submissions under way, at most CLOSE_LIMIT_S, and ends the device.

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
            self._device.counters.buffers += 1
            self._device.counters.buffer_bytes += size_bytes
        return tensor


# -- memory ----------------------------------------------------------------------------------------
