"""Sensors: how warm a card is, where Linux tells. Nothing is guessed.

    0000:03:00.0 -> /sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon4/temp1_input -> 41000 -> 41.0

Drivers that are part of Linux (amdgpu, nouveau, xe) tell there. Examples:
tests/monitor/test_sensors.py.
"""

from __future__ import annotations

import re
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
COLDEST_C, HOTTEST_C = -50.0, 200.0
"""What is outside is no temperature of a card."""


def temperature_c(pci: str) -> float | None:
    """Return the first temperature of a card by its address on the bus; None where nobody tells.

    The first one is that of the chip; others are of its hottest place and its memory.
    """
    if not _ADDRESS.fullmatch(pci):
        return None
    for path in sorted(DEVICES.glob(f"{pci}/hwmon/hwmon*/temp?_input")):
        try:
            degrees = int(path.read_text("ascii")) / 1000
        except (OSError, ValueError):
            continue
        if COLDEST_C <= degrees <= HOTTEST_C:
            return degrees
    return None
