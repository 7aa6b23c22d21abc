"""Which devices the examples run on: hardware GPUs, else software ones, else numpy."""

from __future__ import annotations

import vksched as vs


def present_devices() -> list[str]:
    """Return the names of all devices of the best kind present, discrete cards first."""
    found = [info for info in vs.devices() if info.name != "cpu" and info.usable]
    found.sort(key=lambda info: info.type != "discrete")
    hardware = [info.name for info in found if info.default]
    software = [info.name for info in found if info.type == "cpu"]
    return hardware or software or ["cpu"]


def pick_devices(count: int) -> list[str]:
    """Return `count` devices; one is opened several times where there are fewer."""
    present = present_devices()
    return present if present == ["cpu"] else [present[i % len(present)] for i in range(count)]
