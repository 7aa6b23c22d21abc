"""Memory budget: what weights and states have taken of each device's memory while placement goes
on.

    null:0  |#### w0 ####|## w1 ##|  |    w2 does not fit: closed, but for what would fill as much

Complexity: O(1) each, beside the devices that share a memory. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

import math

from ...plan.costs.op_support import OpSupport

WELL_FILLED = 0.9
"""The share of its memory from which on a device that refuses a weight takes no further ones, and
from which on the planner looks for no higher cap.
"""


class MemoryBudget:
    """The bytes that are left of each memory. That of the caller's CPU has no end: its weights are
    the caller's arrays.
    """

    def __init__(self, support: OpSupport) -> None:
        self._support = support
        self._topology = support.topology
        self._left: list[float] = [spec.memory_bytes for spec in self._topology.devices]
        self._left[self._topology.cpu] = math.inf
        self._closed: dict[int, float] = {}
        """Devices that have refused a weight, with the bytes from which on they take others."""

    def take(self, device: int, weight: int) -> None:
        """Count a weight off the room of a device and of those that share its memory."""
        self._count(device, self._support.missing_bytes(weight, device))

    def release(self, device: int, weight: int) -> None:
        """Give back what `take` has counted off."""
        self._count(device, -self._support.missing_bytes(weight, device))

    def _count(self, device: int, size_bytes: int) -> None:
        for other in self._topology.memory_peers(device):
            self._left[other] -= size_bytes

    def refuses(self, device: int, weight: int) -> bool:
        """Whether a device has no room for a weight, or has refused one that was no larger."""
        missing, free_bytes = self._support.missing_bytes(weight, device), self._left[device]
        if missing > free_bytes:  # the small weights further on would be islands here
            least = (1 - WELL_FILLED) * self._topology.devices[device].memory_bytes
            small = min(missing, least) if free_bytes >= least else math.inf
            self._closed[device] = max(small, self._closed.get(device, 0))
        return missing > free_bytes or 0 < missing < self._closed.get(device, 0)
