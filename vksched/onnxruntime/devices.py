"""Devices in onnxruntime's terms: OrtDevice for memory, OrtEpDevice for execution providers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..common.errors import DeviceError
from ..runtime.vulkan import device_probe
from .providers import CPU, VULKAN
from .version import version


class OrtDeviceVendorId(enum.IntEnum):
    """PCI vendor ids."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtAllocatorType(enum.IntEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtDeviceMemoryType(enum.IntEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtExecutionProviderDevicePolicy(enum.IntEnum):
    """PREFER_CPU and MIN_OVERALL_POWER select the CPU, the others the default devices."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtHardwareDeviceType(enum.IntEnum):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemType(enum.IntEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtMemoryInfoDeviceType(enum.IntEnum):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


_TYPES: Mapping[str, tuple[int, int]] = {
    "cpu": (0, OrtDeviceVendorId.NONE),
    "gpu": (1, OrtDeviceVendorId.NONE),
    "cuda": (1, OrtDeviceVendorId.NVIDIA),
    "dml": (1, OrtDeviceVendorId.MICROSOFT),
    "webgpu": (1, OrtDeviceVendorId.NONE),
    "npu": (3, OrtDeviceVendorId.NONE),
    "cann": (3, OrtDeviceVendorId.HUAWEI),
}
"""Number of each device type, and its vendor, by name."""


class OrtDevice:
    """Memory location of a value. It is a label only: values of sessions are in host memory."""

    def __init__(self, device_type: int, memory: int, *vendor_and_id: int) -> None:
        self._type, self._memory = int(device_type), int(memory)
        *vendor, self._id = vendor_and_id
        self._vendor = int(vendor[0]) if vendor else 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return the device with a name, for instance "cpu" or "cuda".

        Raises
        ------
        DeviceError
            There is no such name.
        """
        if ort_device_name not in _TYPES:
            raise DeviceError(
                f"[session] expected a device type of {', '.join(_TYPES)}, got {ort_device_name!r}"
            )
        number, vendor = _TYPES[ort_device_name]
        return OrtDevice(number, 0, vendor if vendor_id < 0 else vendor_id, device_id)

    @staticmethod
    def default_memory() -> int:
        return 0

    @staticmethod
    def cpu() -> int:
        return _TYPES["cpu"][0]

    @staticmethod
    def cuda() -> int:
        return _TYPES["cuda"][0]

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self._type

    def device_vendor_id(self) -> int:
        return self._vendor

    def device_mem_type(self) -> int:
        return self._memory


@dataclass(frozen=True, slots=True)
class OrtMemoryInfo:
    """The memory of an allocator."""

    name: str
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0


@dataclass(frozen=True, slots=True)
class OrtHardwareDevice:
    """A processor; `device_id` is its index among the devices."""

    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int
    device_id: int
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrtEpDevice:
    """A device for sessions; an argument of `SessionOptions.add_provider_for_devices`."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: dict[str, str] = field(default_factory=dict)
    ep_options: dict[str, str] = field(default_factory=dict)


def get_ep_devices() -> list[OrtEpDevice]:
    """Return the default devices: the Vulkan devices and the CPU."""
    found: list[OrtEpDevice] = []
    for info in device_probe.list_devices():
        cpu = info.name == "cpu"
        if not info.default and not cpu:
            continue
        kind = OrtHardwareDeviceType.CPU if cpu else OrtHardwareDeviceType.GPU
        vendor = OrtDeviceVendorId.__members__.get(info.vendor.upper(), OrtDeviceVendorId.NONE)
        number = 0 if cpu else info.index
        hardware = OrtHardwareDevice(kind, info.vendor, vendor, number, {"name": info.label})
        found.append(OrtEpDevice(CPU if cpu else VULKAN, "vksched", hardware, {"version": version}))
    return found
