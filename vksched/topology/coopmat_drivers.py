"""Drivers whose cooperative matrices are used before the tuner has measured them.

    driver id, driver, label of a device --CoopmatDriver--> listed?
      --runtime/vulkan/device_check.py: results are exact--> Limits.coopmat_checked

Other drivers may emulate cooperative matrices slowly or compute wrong results; there the tuner
measures and compares first. A known fault (driver_faults.py) that excludes the matrices wins.
Examples: tests/runtime/test_coopmat_check.py.
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
    except_device
        A regular expression of labels of GPUs without matrix units; "" if there are none.
    """

    name: str
    driver_id: int
    since: tuple[int, ...]
    source: str
    device: str = ""
    except_device: str = ""

    def includes(self, driver_id: int, driver: str, label: str) -> bool:
        """Return True if a device has this driver in a listed version, and matrix units."""
        return (
            driver_id == self.driver_id
            and version_of(driver) >= self.since
            and re.search(self.device, label) is not None
            and not (self.except_device and re.search(self.except_device, label))
        )


COOPMAT_DRIVERS = (
    # TU116 and TU117 have no tensor cores, and the driver reports matrices there, too, "with a very
    # low performance" (llama.cpp's issue 15233): GTX 16, MX450 and MX550, T400 to T1200, T2000.
    CoopmatDriver(
        "nvidia-proprietary",
        driver_id=4,
        since=(550,),
        source="https://github.com/ggml-org/llama.cpp/pull/10597",
        except_device=r"\bGTX 16\d\d|\bMX[45]50\b|\bT([456]00|550|1000|1200|2000)\b|\bCMP 30HX\b",
    ),
    CoopmatDriver(
        "radv",
        driver_id=3,
        since=(24, 3),
        source="https://github.com/ggml-org/llama.cpp/pull/10597",
    ),
    # The source reports gains on Lunar Lake and Battlemage, and losses on Arc A (DG2). Panther Lake
    # was not measured. The labels of Mesa end in the platform. Mesa 25.0 also reports matrices on
    # GPUs without XMX, and emulates them there.
    CoopmatDriver(
        "anv",
        driver_id=6,
        since=(25, 0),
        source="https://github.com/ggml-org/llama.cpp/pull/14001",
        device=r"\((LNL|BMG)\b",
    ),
)
"""The list."""


_TURING = r"\bRTX 20[678]0\b|\bTITAN RTX\b|\bQuadro RTX\b|\bTesla T(4|10)\b|\bNVIDIA T4G?\b"


def has_slow_attention(label: str) -> bool:
    """Return True if attention by cooperative matrices is slower than by other kernels: on NVIDIA's
    Turing (https://github.com/ggml-org/llama.cpp/pull/19290).
    """
    return re.search(_TURING, label) is not None


def lists_coopmat(driver_id: int, driver: str, label: str) -> bool:
    """Return True if the driver of a device is listed."""
    return any(each.includes(driver_id, driver, label) for each in COOPMAT_DRIVERS)
