"""Known faults of drivers, and the features that they exclude.

    (label, vendor, driver) of a device --FAULTS--> its faults --without_faults--> smaller Limits

An entry names a driver, a range of its versions, and the fields of Limits that it makes unusable.
VKSCHED_IGNORE_DRIVER_FAULTS=1 uses all features anyway, for example to test a newer driver.
Examples: tests/runtime/test_driver_faults.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .limits import Limits


@dataclass(frozen=True, slots=True)
class DriverFault:
    """A fault of a driver.

    Parameters
    ----------
    name
        A short unique name.
    driver
        A regular expression that the driver's name and version match, in any case.
    leave_out
        The fields of Limits that devices with the fault do not have.
    effect
        The effect of the fault on a user who has all features.
    source
        The address of a description of the fault.
    vendor
        The vendor of the device, or "" for all vendors.
    device
        A regular expression that the device's label matches.
    except_device
        A regular expression of labels that do not have the fault.
    before
        The first version without the fault; () if there is none yet.
    """

    name: str
    driver: str
    leave_out: tuple[str, ...]
    effect: str
    source: str
    vendor: str = ""
    device: str = ""
    except_device: str = ""
    before: tuple[int, ...] = ()

    def applies(self, label: str, vendor: str, driver: str) -> bool:
        """Return True if a device has the fault."""
        if self.vendor and vendor != self.vendor:
            return False
        if not re.search(self.driver, driver, re.IGNORECASE):
            return False
        if not re.search(self.device, label, re.IGNORECASE):
            return False
        if self.except_device and re.search(self.except_device, label, re.IGNORECASE):
            return False
        version = version_of(driver)
        return not self.before or not version or version < self.before


FAULTS = (
    DriverFault(
        "intel-windows-matrices",
        driver=r"^Intel Corporation\b",
        leave_out=("matrices",),
        effect="the device is lost in kernels with cooperative matrices on Arc B, and they are far "
        "slower than others on Arc A",
        source="https://github.com/ggml-org/llama.cpp/issues/22034",
        vendor="Intel",
    ),
    DriverFault(
        "amd-proprietary-matrices",
        driver=r"^AMD (proprietary|open-source) driver\b",
        leave_out=("matrices",),
        effect="the driver reports cooperative matrices on cards without matrix units",
        source="https://github.com/ggml-org/llama.cpp/pull/10597",
        vendor="AMD",
        except_device=r"RX 7\d\d0|PRO W7\d00|\b7[468]0M|\b8\d{2}0?[MS]\b"
        r"|RX 90\d0|R9700|\bMI[123]\d\d",
    ),
    DriverFault(
        "moltenvk-amd-shuffle",
        driver=r"^MoltenVK\b",
        leave_out=("subgroup_shuffle",),
        effect="results of subgroup shuffles are wrong",
        source="https://github.com/ggml-org/llama.cpp/issues/20465",
        vendor="AMD",
    ),
)
"""The known faults."""
_DOTTED = r"\d+(?:\.\d+)+"


def version_of(driver: str) -> tuple[int, ...]:
    """Return the version in a driver's name and version; () without one.

    This is the first dotted number after "Mesa" or "NVIDIA": distributions add numbers of their
    own, as in "radv Mesa 25.0.7-0ubuntu0.24.04.2". For other drivers it is the last one.
    """
    text = re.sub(r"\(.*?\)", "", driver)
    known = re.search(rf"\b(?:Mesa|NVIDIA)\b.*?\b({_DOTTED})", text)
    found = [known[1]] if known else re.findall(_DOTTED, text)
    return tuple(map(int, found[-1].split("."))) if found else ()


def faults_of(label: str, vendor: str, driver: str) -> tuple[DriverFault, ...]:
    """Return the known faults of a device."""
    return tuple(fault for fault in FAULTS if fault.applies(label, vendor, driver))


def without_faults(limits: Limits, faults: Iterable[DriverFault]) -> Limits:
    """Return limits without the features that faults exclude."""
    names = {name for fault in faults for name in fault.leave_out}
    return replace(limits, **{name: getattr(Limits(), name) for name in sorted(names)})
