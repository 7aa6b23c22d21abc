"""Transfer bandwidth between mapped host memory and device memory, copied by the device.

Weights, inputs and results are transferred this way, in addition to host copies before and after.

Examples: tests/bench/test_bus.py.
"""

from __future__ import annotations

import time

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import UnsupportedOp
from ..runtime.device import Device
from ..runtime.vulkan.vulkan_device import VulkanDevice

TIMEOUT_S = 60.0


class BusCopy:
    """A prepared copy. direction: "in" to the device, or "out" of it."""

    def __init__(self, device: Device, values: NDArray, direction: str) -> None:
        if not isinstance(device, VulkanDevice):
            raise UnsupportedOp(f"[bench] {device.name} has no bus to copy over")
        context, words = device.context, values.size
        self._dtype = values.dtype
        self._input = context.host(words)
        self._taken = context.host(words, read=True)
        self._held = context.storage(words)
        self._in, self._out = context.recording(), context.recording()
        pairs = ((self._input, self._held), (self._held, self._taken))
        for recording, (source, target) in zip((self._in, self._out), pairs, strict=True):
            recording.begin()
            recording.barrier("host", "copy")
            recording.copy(source, target, 0, 0, words)
            recording.barrier("copy", "host")
            recording.end()
        self._timed = self._in if direction == "in" else self._out
        self._input.array[:] = values.reshape(-1).view(np.uint32)

    def result(self) -> NDArray:
        """Return the values after a round trip."""
        self._taken.array[:] = 0
        for recording in (self._in, self._out):
            recording.submit()
            recording.wait(TIMEOUT_S)
        return np.array(self._taken.array).view(self._dtype)

    def seconds(self) -> float:
        """Return the seconds of one copy, including its submission."""
        start = time.perf_counter()
        self._timed.submit()
        self._timed.wait(TIMEOUT_S)
        return time.perf_counter() - start

    def close(self) -> None:
        for recording in (self._in, self._out):
            recording.close()
        for buffer in (self._input, self._taken, self._held):
            buffer.close()
