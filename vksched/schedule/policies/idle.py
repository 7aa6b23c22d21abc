"""Idle devices: the device that becomes free first, by a heap.

Complexity: the logarithm of devices for each call. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

import heapq


class Idle:
    """Devices by the time at which they become free. Outdated entries are dropped on access."""

    def __init__(self, devices: int) -> None:
        self._free = [0.0] * devices
        self._heap = [(0.0, d) for d in range(devices)]

    def first(self) -> int:
        """Return the device that becomes free first."""
        while self._heap[0][0] != self._free[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def busy(self, device: int, until: float) -> None:
        """Set the time until which a device is busy."""
        if until != self._free[device]:
            self._free[device] = until
            heapq.heappush(self._heap, (until, device))
