"""Drivers whose cooperative matrices are used before the tuner has measured them.

    driver id, driver, label of a device --CoopmatDriver--> listed?
      --runtime/vulkan/device_check.py: results are exact--> Limits.coopmat_checked

Other drivers may emulate cooperative matrices slowly or compute wrong results; there the tuner
measures and compares first. A known fault (driver_faults.py) that excludes the matrices wins.
Examples: tests/runtime/test_device_check.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .driver_faults import version_of


@dataclass(frozen=True, slots=True)
class CoopmatDriver:
    """A driver with fast and correct cooperative matrices.

    Parameters
    ----------
    name
        A short unique name.
    driver_id
        Its VkDriverId.
    since
        The first version.
    source
        The address of measurements with this driver.
    device
        A regular expression that the device's label matches, for drivers that also emulate
        cooperative matrices on GPUs without matrix units.
    """

    name: str
    driver_id: int
    since: tuple[int, ...]
    source: str
    device: str = ""

    def includes(self, driver_id: int, driver: str, label: str) -> bool:
        """Return True if a device has this driver in a listed version, and matrix units."""
        return (
            driver_id == self.driver_id
            and version_of(driver) >= self.since
            and re.search(self.device, label) is not None
        )


COOPMAT_DRIVERS = (
    CoopmatDriver(
        "nvidia-proprietary",
        driver_id=4,
        since=(550,),
        source="https://github.com/ggml-org/llama.cpp/pull/10597",
    ),
    CoopmatDriver(
        "radv",
        driver_id=3,
        since=(24, 3),
        source="https://github.com/ggml-org/llama.cpp/pull/10597",
    ),
    # Mesa 25.0 reports matrices on all GPUs since Gfx9 and emulates them on those without XMX;
    # its labels end in the platform. Arrow Lake's platform has GPUs of both kinds.
    CoopmatDriver(
        "anv",
        driver_id=6,
        since=(25, 0),
        source="https://github.com/ggml-org/llama.cpp/pull/14001",
        device=r"\((DG2|LNL|BMG|PTL)\b",
    ),
)
"""The list."""


def lists_coopmat(driver_id: int, driver: str, label: str) -> bool:
    """Return True if the driver of a device is listed."""
    return any(each.includes(driver_id, driver, label) for each in COOPMAT_DRIVERS)
