"""Context: a typed interface to Kompute's contexts, buffers, pipelines and recordings.

    Context -> storage(), host() -> pipeline() -> recording(): begin, dispatch, copy, barrier, end
                                                               submit, wait, done, duration_s

A recording or pipeline keeps its buffers alive, and views of mapped memory keep their device alive:
no submission loses its objects. Examples: tests/runtime/test_companion.py.
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
"""Maximum number of threads that compile pipelines."""

Wanted = tuple[bytes, tuple[int, ...], int, int, int]
"""SPIR-V, the values of its constants, number of buffers, bytes of push constants, and the required
subgroup size, or 0.
"""

MAX_BUFFER_BYTES = (1 << 32) - 4
"""kp counts bytes in 32 bits."""


COPY_PATHS = ("own", "same", "off")
"""Values of VKSCHED_COPY_QUEUE."""


def is_same_queue() -> bool:
    """Return True if separate copies use the compute queue, for tests."""
    return word_of("VKSCHED_COPY_QUEUE", COPY_PATHS) == "same"


def _open(described: dict[str, Any], index: int, name: str, copy_queue: bool) -> tuple[str, Any]:
    """Return the queue kind of copy recordings, and the open device."""
    path = word_of("VKSCHED_COPY_QUEUE", COPY_PATHS)
    compute, copies = (described.get(f"{kind}_queue_family") for kind in ("compute", "copy"))
    knows = hasattr(
        binding.companion, "timeline_semaphores_enabled"
    )  # older builds of the module have no queues
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
    """One open logical device; opening an index again creates another one.

    Parameters
    ----------
    copy_queue
        Whether to open a transfer queue if there is one.

    Attributes
    ----------
    featured
        Whether it was opened with its features beyond Vulkan 1.1.
    copies
        The queue of copy recordings: "own", a transfer queue; "same", the compute queue; "",
        none, as on drivers without timeline semaphores.
    robust
        Whether out-of-bounds accesses of kernels are confined, see `binding.robust_access`.

    Raises
    ------
    DeviceError
        There is no such device, or it cannot be opened.
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
        """Required alignment of imported host memory in bytes; 0 if import is not supported."""
        self.is_host: bool = described["type"] == "cpu"
        """True if its memory is the host's, as that of CPU drivers."""
        self.max_buffer_bytes: int = min(
            MAX_BUFFER_BYTES,
            limits["maxStorageBufferRange"],
            limits["maxMemoryAllocationSize"] or MAX_BUFFER_BYTES,
        )
        knows = hasattr(binding.companion, "set_robust_access")  # else the module is an older build
        if knows:
            binding.companion.set_robust_access(binding.robust.get())
        self.copies, manager = _open(described, index, name, copy_queue)
        self.featured: bool = binding.companion.features_enabled(manager)
        self.robust: bool = knows and binding.companion.robust_access_enabled(manager)
        self._device = DeviceHandle(index, name, manager)
        self._finalizer = weakref.finalize(self, DeviceHandle.destroy_at_exit, self._device)

    @property
    def counters(self) -> Counters:
        """The counters of the context since it was opened."""
        return self._device.counters

    def storage(self, words: int) -> Buffer:
        """Return device-local memory of 32-bit words with any content; the host cannot map it."""
        # np.empty only reserves address space: kp never reads a storage tensor's data.
        return Buffer(self._device, self._allocate(words, "storage"), words)

    def host(self, words: int, zeroed: bool = True, read: bool = False) -> HostBuffer:
        """Return host-visible coherent memory of 32-bit words, with any content or zeroed.

        Parameters
        ----------
        read
            True for host-cached memory, which the host reads fast.
        """
        binding.companion.set_prefer_cached(read)
        try:
            native = self._allocate(words, "host", zeroed)
        finally:
            binding.companion.set_prefer_cached(False)
        return HostBuffer(self._device, native, words)

    def make_pipelines(self, wanted: Collection[Wanted]) -> None:
        """Compile missing pipelines on several threads without the GIL. Errors are ignored here;
        `pipeline` raises them.
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
        """Return a shader bound to buffers; constants are the specialization ids 0, 1, ...

        Parameters
        ----------
        subgroup
            The required subgroup size, one of the device's `subgroup_sizes`; 0: any.
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
        """Return an empty recording.

        Parameters
        ----------
        copies
            True if it has only copies and may use the transfer queue.
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
        """Return imported host pages as a source of `Recording.copy_imported`; None if the driver
        cannot import them. The pages must not change until the result is freed.
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

        This is the driver's budget minus its usage; without a budget, the heap minus our
        allocations.
        """
        total, used, _ = self.memory_bytes()
        return total - used

    def memory_bytes(self) -> tuple[int, int, int]:
        """Return the size of the largest device-local heap, its used bytes, and those of this
        process.
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

    def keep_open(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that keeps the device alive, even if it is closed meanwhile. For
        long native calls without the GIL, on a thread that no interrupt reaches.
        """
        return self._device.keep_open()

    def keep(self, *used: object) -> None:
        """Retain objects that a hanging submission may still use until the device is destroyed."""
        self._device.retained += used

    def pending(self, apart: Recording | None = None) -> bool:
        """Return True if a submission is in flight, except one recording's."""
        with self._device.lock:
            natives = [r._native for r in self._device.recordings if r is not apart]
        return any(native is not None and native.pending for native in natives)

    def close(self) -> None:
        """Wait for submissions in flight, at most CLOSE_LIMIT_S, and destroy the device.

        Views of mapped memory stay readable: the device is then destroyed with the last of them.
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
