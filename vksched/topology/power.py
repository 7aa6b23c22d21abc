"""Power: the watts of a device, busy and idle, as plain data.

Vulkan drivers do not report power. Without a specified value it is assumed by the kind of the
device and marked as assumed wherever energy is shown. Assumed values are right to a factor and are
only good for comparisons.

    energy of a run = sum over devices of  busy watts * busy seconds + idle watts * other seconds

Examples: tests/plan/test_metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device_spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class DevicePower:
    """Power of a device while it works and while it is idle.

    Parameters
    ----------
    assumed
        True if it was not specified.
    """

    busy: float
    idle: float = 0.0
    assumed: bool = False

    @property
    def more(self) -> float:
        """The additional power of a busy device."""
        return self.busy - self.idle


DISCRETE = DevicePower(150.0, 15.0, True)
"""A card with its own memory."""
INTEGRATED = DevicePower(25.0, 3.0, True)
"""A GPU that shares the host's memory."""
PROCESSOR = DevicePower(65.0, 10.0, True)
"""The CPU, for numpy and for the host's work in a run."""
SOFTWARE = DevicePower(65.0, 0.0, True)
"""A driver that computes on the CPU, whose idle power counts once."""


def watts_of(spec: DeviceSpec) -> DevicePower:
    """Return the power of a device: the specified values, else those assumed for its kind."""
    if spec.kind == "cpu":
        kind = PROCESSOR
    elif spec.limits.software:
        kind = SOFTWARE
    else:
        kind = DISCRETE if not spec.unified_memory else INTEGRATED
    busy, idle = spec.busy_watts, spec.idle_watts
    if busy is None:
        return DevicePower(max(kind.busy, idle or 0.0), kind.idle if idle is None else idle, True)
    if idle is None:
        return DevicePower(busy, min(kind.idle, busy), True)
    return DevicePower(busy, idle)
