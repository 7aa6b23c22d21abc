"""Power: how many watts a device takes, busy and idle, as plain data.

No driver of Vulkan tells this. What nobody has given is assumed by the kind of the device, and is
marked as such wherever energy is shown: it is right to a factor, for one card beside another, and
no more than that.

    energy of a run = sum over devices of  busy watts * busy seconds + idle watts * other seconds

Examples: tests/plan/test_metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device_spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class Watts:
    """What a device takes while it works, and while it does not. assumed: nobody has given it."""

    busy: float
    idle: float = 0.0
    assumed: bool = False

    @property
    def more(self) -> float:
        """What work adds to an idle device."""
        return self.busy - self.idle


DISCRETE = Watts(150.0, 15.0, True)
"""A card with memory of its own."""
INTEGRATED = Watts(25.0, 3.0, True)
"""A GPU that shares the computer's memory."""
PROCESSOR = Watts(65.0, 10.0, True)
"""The CPU, for numpy and for the host's part of a run."""
SOFTWARE = Watts(65.0, 0.0, True)
"""A driver that computes on the CPU, which is idle once."""


def watts_of(spec: DeviceSpec) -> Watts:
    """Return the watts of a device: what was given, else what its kind is assumed to take."""
    if spec.kind == "cpu":
        kind = PROCESSOR
    elif spec.limits.software:
        kind = SOFTWARE
    else:
        kind = DISCRETE if not spec.unified_memory else INTEGRATED
    busy, idle = spec.busy_watts, spec.idle_watts
    if busy is None:
        return Watts(max(kind.busy, idle or 0.0), kind.idle if idle is None else idle, True)
    if idle is None:
        return Watts(busy, min(kind.idle, busy), True)
    return Watts(busy, idle)
