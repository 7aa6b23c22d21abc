"""Opens Vulkan devices; separate from modules that must import without the native modules."""

from __future__ import annotations

from ...common.errors import DeviceError
from ..device import Device
from . import device_probe


def open_device(info: device_probe.DeviceInfo, name: str) -> Device:
    """Open a Vulkan device under a name; raise DeviceError if that fails."""
    # need the native modules, which may be absent
    from .device_check import with_checked_kernels
    from .vulkan_device import VulkanDevice

    try:
        spec = with_checked_kernels(device_probe.device_spec(info, name), info)
        return VulkanDevice(spec, info.index)
    except DeviceError as error:
        error.device = name
        raise
