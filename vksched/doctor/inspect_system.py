"""Findings about the loader, the drivers, the layers and each device; nothing is opened."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..common.version import __version__
from ..runtime.vulkan import driver_probe
from ..runtime.vulkan.device_probe import VENDORS, DeviceInfo, Survey
from ..topology.driver_faults import FAULTS
from ..topology.limits import Limits
from .health_report import NOTE, OK, PROBLEM, DeviceHealth, Finding, System
from .vulkan_loader import Loader

FEATURES = {
    "matrices": "matrix units for matmuls, attention and prompts",
    "float16": "arithmetic of the precision modes mixed and float16",
    "storage16": "weights and KV caches in float16 without unpacking",
    "storage8": "int8 weights without unpacking",
    "integer_dot_fast": "fast int8 products",
    "subgroup_shuffle": "sums within a subgroup without shared memory",
    "subgroup_arithmetic": "rows by quantized weights in the precision modes mixed and float16",
    "subgroup_sizes": "kernels with a fixed subgroup size",
    "memory_budget": "the amount of free memory, instead of the total",
    "copy_queue": "copies during computation",
}
"""The features that users notice, and what each is for."""
DRIVERS = {
    "AMD": "Mesa 24.3 or newer (package mesa-vulkan-drivers), or AMD's driver on Windows",
    "Intel": "Mesa 25.0 or newer (package mesa-vulkan-drivers), or Intel's driver on Windows",
    "NVIDIA": "NVIDIA's driver 550 or newer (package nvidia-driver)",
}
"""The driver to try, by vendor."""
_LOADER = "install the Vulkan loader: libvulkan1 (Debian, Ubuntu), vulkan-loader (Fedora)"
_PCI_DISPLAY = "0x03"


def describe_system(loader: Loader) -> System:
    """Return the software of this computer, without names and paths."""
    return System(
        os=f"{platform.system()} {'.'.join(re.findall(r'[0-9]+', platform.release())[:2])}",
        machine=platform.machine(),
        python=platform.python_version(),
        vksched=__version__,
        loader=loader.version,
        drivers=tuple(Path(manifest).name for manifest in driver_probe.manifests()),
        layers=loader.layers,
    )


def system_findings(loader: Loader, found: Survey) -> Iterator[Finding]:
    """Yield findings about the loader, drivers, layers and permissions."""
    devices = found.devices[:-1]
    if loader.version:
        yield Finding(OK, "loader", f"Vulkan {loader.version}")
    elif not devices:
        yield Finding(PROBLEM, "loader", "no Vulkan loader was found", _LOADER)
    if not devices:
        yield Finding(PROBLEM, "drivers", found.reason or "no driver lists a device")
    for note in found.notes:
        yield Finding(NOTE, "drivers", f"a driver is left out: {note}")
    if loader.enabled:
        yield Finding(
            NOTE,
            "layers",
            f"the environment enables {', '.join(loader.enabled)}",
            "unset VK_INSTANCE_LAYERS and VK_LOADER_LAYERS_ENABLE for full speed",
        )
    for vendor in sorted(_display_vendors() - {device.vendor for device in devices}):
        yield Finding(
            PROBLEM,
            "drivers",
            f"this computer has a GPU of {vendor} that no Vulkan driver lists",
            f"install {DRIVERS[vendor]}",
        )
    nodes = sorted(Path("/dev/dri").glob("renderD*"))
    if nodes and not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        yield Finding(
            PROBLEM,
            "permissions",
            "this user may not open any GPU",
            "add the user to the groups render and video, then log in again",
        )


def _display_vendors() -> set[str]:
    """Return the vendors with known drivers whose GPUs are on the PCI bus; Linux only."""
    found = set()
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            kind, vendor = (device / name for name in ("class", "vendor"))
            if kind.read_text("ascii").startswith(_PCI_DISPLAY):
                found.add(VENDORS.get(int(vendor.read_text("ascii"), 16), ""))
        except (OSError, ValueError):
            continue
    return found & set(DRIVERS)


def missing_features(info: DeviceInfo) -> tuple[str, ...]:
    """Return the features of FEATURES that a device lacks."""
    missing = tuple(name for name in FEATURES if not getattr(info.limits, name))
    return (*missing, *(() if info.timestamps else ("timestamps",)))


def device_findings(info: DeviceInfo) -> Iterator[Finding]:
    """Yield findings about one device, from the driver's description."""
    if info.problem:
        remedy = DRIVERS.get(info.vendor, "")
        yield Finding(PROBLEM, info.name, info.problem, remedy and f"install {remedy}")
        return
    if info.duplicate_of:
        text = f"the same device as {info.duplicate_of}, by another driver"
        yield Finding(NOTE, info.name, text)
    elif info.type == "cpu":
        text = "a software driver, slower than numpy; it is used only by name"
        yield Finding(NOTE, info.name, text)
    for fault in FAULTS:
        if fault.name in info.faults:
            without = ", ".join(fault.leave_out)
            text = f"known fault of the driver: {fault.effect}; vksched does without {without}"
            yield Finding(NOTE, info.name, text, f"see {fault.source}")
    missing = [name for name in missing_features(info) if name in FEATURES]
    excluded = {name for fault in FAULTS if fault.name in info.faults for name in fault.leave_out}
    lacking = [f"{name} ({FEATURES[name]})" for name in missing if name not in excluded]
    if lacking and info.type != "cpu":
        driver = DRIVERS.get(info.vendor)
        yield Finding(
            NOTE,
            info.name,
            f"not reported by the driver: {'; '.join(lacking)}",
            f"if the card has it, try {driver}" if driver else "",
        )


def describe_device(info: DeviceInfo) -> DeviceHealth:
    """Return a device before any kernel runs on it."""
    return DeviceHealth(
        name=info.name,
        label=info.label,
        type=info.type,
        vendor=info.vendor,
        driver=info.driver,
        api_version=info.api_version,
        memory_bytes=info.memory_total_bytes,
        limits=_plain_limits(info.limits),
        missing=missing_features(info),
        faults=info.faults,
        proof=None,
        measured=(),
    )


def _plain_limits(limits: Limits) -> dict[str, Any]:
    plain = asdict(limits)
    del plain["tuned"]
    return plain


def gpus(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the hardware devices that can be used, without duplicates."""
    return [
        info
        for info in devices
        if info.name != "cpu" and info.type != "cpu" and info.usable and not info.duplicate_of
    ]
