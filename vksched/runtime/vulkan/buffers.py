"""Buffers of a device: device-local memory, and memory that the host can map.

Examples: tests/runtime/test_companion.py.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from . import binding
from .binding import errors
from .device_handle import DeviceHandle, count_live


class Buffer:
    """Device memory in 32-bit words."""

    def __init__(self, device: DeviceHandle, native: Any, words: int) -> None:
        self.words = words
        self._device = device
        self._native: Any = native
        with self._device.lock:
            self._device.natives.add(self)
            count_live(self._device.index, 4 * words)
        self._finalizer = weakref.finalize(self, _count_freed, self._device, 4 * words)
        self._finalizer.atexit = False

    @property
    def size_bytes(self) -> int:
        return 4 * self.words

    def close(self) -> None:
        """Release the memory, at once or with the last pipeline that uses it."""
        self._native = None
        self._finalizer()

    @contextlib.contextmanager
    def mapped(self) -> Iterator[npt.NDArray[np.uint32] | None]:
        """Yield the memory as an array, to be written while no submission uses it; None if the host
        cannot map it.
        """
        native, manager = self._open_native(), self._device.manager
        with errors("map", self._device.name):
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
    """Mapped memory in 32-bit words, visible to host and device."""

    def __init__(self, device: DeviceHandle, native: Any, words: int) -> None:
        super().__init__(device, native, words)
        self._array: npt.NDArray[np.uint32] | None = np.asarray(_MappedOwner(device, native))

    @property
    def array(self) -> npt.NDArray[np.uint32]:
        """The memory as a writable array; barriers between "host" and "shader" order the
        accesses.
        """
        if self._array is None:
            raise self._device.closed_error("buffer", "buffer")
        return self._array

    def close(self) -> None:
        """Release the memory, at once or with the last view or pipeline that uses it."""
        self._array = None
        super().close()


class _MappedOwner:
    """The base object of numpy views of mapped memory; keeps the device open."""

    def __init__(self, device: DeviceHandle, tensor: Any) -> None:
        data: npt.NDArray[np.uint32] = tensor.data()
        self.__array_interface__ = data.__array_interface__
        self._tensor = tensor
        device.mappings.add(self)
        weakref.finalize(self, device.destroy_if_unused).atexit = False


def _count_freed(device: DeviceHandle, size_bytes: int) -> None:
    with device.lock:
        count_live(device.index, -size_bytes)
