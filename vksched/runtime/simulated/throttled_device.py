"""Throttled device: a device that is slowed down on purpose, to test how a program reacts to a hot
or shared card.

    ThrottledDevice("vulkan:0", slowdown=4.0)       each submission seems to take four times as long

The wrapped device does the work. The end times of submissions are delayed, one after the other,
each by its real time times the slowdown. Without timestamps the time that the host measured is
used. `slowdown` may be set at any time, also during runs. Examples:
tests/engine/test_dynamic_runs.py, benchmarks/overheads/slowdown.py.
"""

from __future__ import annotations

import math
import time

from ...common.dtypes import Progress
from ...common.errors import DeviceError, DeviceTimeout
from ...plan.types.plan_types import PlanValue
from ..device import Device, PreparedPlan, Times, WrappedPreparedPlan
from .device_wrapper import WrappedDevice


class ThrottledDevice(WrappedDevice):
    """A device whose submissions take longer.

    Parameters
    ----------
    device
        The name of a Vulkan device, or any Device with a real clock but the CPU.
    slowdown
        Factor over the real time, at least 1.

    Raises
    ------
    DeviceError
        The slowdown is below 1 or not finite, the device is the CPU, or it does not exist.
    """

    def __init__(self, device: str | Device, slowdown: float = 1.0) -> None:
        self.slowdown = slowdown  # validated before a device is opened
        super().__init__(device)
        self.free_s = -math.inf
        """Delayed end time of all earlier submissions."""

    @property
    def slowdown(self) -> float:
        return self._slowdown

    @slowdown.setter
    def slowdown(self, times: float) -> None:
        if not (isinstance(times, (int, float)) and 1 <= times < math.inf):
            raise DeviceError(f"[ThrottledDevice] expected a slowdown of at least 1, got {times!r}")
        self._slowdown = float(times)

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> ThrottledPreparedPlan:
        return ThrottledPreparedPlan(self, self.device.prepare(plan, index, progress))


class ThrottledPreparedPlan(WrappedPreparedPlan):
    """One plan on a throttled device."""

    def __init__(self, device: ThrottledDevice, prepared: PreparedPlan) -> None:
        super().__init__(prepared)
        self._device = device
        self._slowdowns: dict[tuple[int, int], float] = {}
        self._sent_s: dict[tuple[int, int], float] = {}
        """Submission times by slot and split in flight, in order of submission."""
        self._ends_s: dict[tuple[int, int], float] = {}

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        self._ends_s.pop((slot, split), None)
        self._sent_s[slot, split] = time.perf_counter()
        self._slowdowns[slot, split] = self._device.slowdown
        self._prepared.submit(slot, split, sequence_number)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        limit_s = time.perf_counter() + timeout_s
        self._prepared.wait(slot, split, timeout_s)
        ends_s = self._end(slot, split)
        if ends_s > limit_s:
            raise DeviceTimeout(f"[wait] split {split} of {self._device.name} takes too long")
        time.sleep(max(0.0, ends_s - time.perf_counter()))

    def ends_s(self, slot: int, split: int) -> float | None:
        if self._prepared.ends_s(slot, split) is None:
            return None
        return None if self._end(slot, split) > time.perf_counter() else -math.inf

    def times_s(self, slot: int, split: int) -> Times:
        taken_s, longest_s = self._prepared.times_s(slot, split)
        slow = self._slowdowns.get((slot, split), 1.0)
        return (
            None if taken_s is None else slow * taken_s,
            None if longest_s is None else slow * longest_s,
        )

    def _end(self, slot: int, split: int) -> float:
        """Return the delayed end time of a finished split, after all earlier ones."""
        for key in list(self._sent_s) if (slot, split) in self._sent_s else ():
            if key[0] == slot:
                self._end_one(key)
            if key == (slot, split):
                break
        return self._ends_s.get((slot, split), -math.inf)

    def _end_one(self, key: tuple[int, int]) -> None:
        sent_s = self._sent_s.pop(key)
        taken_s, _ = self._prepared.times_s(*key)
        start_s = max(sent_s, self._device.free_s)
        if taken_s is None:  # a driver without timestamps: use the host's times
            taken_s = time.perf_counter() - start_s
        # the clock has the time of the host's query, when the next split may have run for long
        end_s = start_s + self._slowdowns[key] * max(0.0, taken_s)
        self._device.free_s = self._ends_s[key] = end_s
