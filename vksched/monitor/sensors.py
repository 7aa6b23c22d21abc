"""Sensors: GPU temperatures from Linux hwmon.

    0000:03:00.0 -> /sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon4/temp1_input -> 41000 -> 41.0

Drivers of the Linux kernel (amdgpu, nouveau, xe) report them. Examples:
tests/monitor/test_sensors.py.
"""

from __future__ import annotations

import re
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
COLDEST_C, HOTTEST_C = -50.0, 200.0
"""Values outside this range are rejected."""


def temperature_c(pci: str) -> float | None:
    """Return the first temperature of a GPU by its PCI address, or None if it has no sensor. The
    first sensor is the chip's; others are its hot spot and memory.
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
