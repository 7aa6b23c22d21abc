"""Memory budget: the free memory of each device during placement of weights and states.

    null:0  |#### w0 ####|## w1 ##|  |    w2 does not fit: closed, except for equally large weights

Complexity: O(1) each, times the devices that share a memory. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

import math

from ...plan.costs.op_support import OpSupport

WELL_FILLED = 0.9
"""Fraction of its memory from which on a device that refuses a weight takes no smaller ones, and
from which on the planner searches for no higher cap.
"""


class MemoryBudget:
    """The free bytes of each memory. That of the driver's CPU is unlimited: its weights are the
    user's arrays.
    """

    def __init__(self, support: OpSupport) -> None:
        self._support = support
        self._topology = support.topology
        self._left: list[float] = [spec.memory_bytes for spec in self._topology.devices]
        self._left[self._topology.cpu] = math.inf
        self._closed: dict[int, float] = {}
        """By device that has refused a weight, the minimum bytes of a weight it takes."""

    def take(self, device: int, weight: int) -> None:
        """Subtract a weight from the free memory of a device and its memory peers."""
        self._count(device, self._support.missing_bytes(weight, device))

    def release(self, device: int, weight: int) -> None:
        """Undo `take`."""
        self._count(device, -self._support.missing_bytes(weight, device))

    def _count(self, device: int, size_bytes: int) -> None:
        for other in self._topology.memory_peers(device):
            self._left[other] -= size_bytes

    def refuses(self, device: int, weight: int) -> bool:
        """Return True if a device has no memory for a weight, or has refused a smaller one."""
        missing, free_bytes = self._support.missing_bytes(weight, device), self._left[device]
        if missing > free_bytes:  # small weights that fit would be isolated here
            least = (1 - WELL_FILLED) * self._topology.devices[device].memory_bytes
            small = min(missing, least) if free_bytes >= least else math.inf
            self._closed[device] = max(small, self._closed.get(device, 0))
        return missing > free_bytes or 0 < missing < self._closed.get(device, 0)
