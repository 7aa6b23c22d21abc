"""Device wrappers: the base of devices that inject faults or delays.

    executor --> WrappedDevice ------> the wrapped device      a subclass changes some calls;
             --> WrappedPreparedPlan --> the prepared plan     all others are forwarded

Examples: tests/engine/test_faults.py, tests/engine/test_dynamic_runs.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ...common.dtypes import Progress
from ...common.errors import DeviceError
from ...plan.types.plan_types import PlanValue
from ...topology.device_spec import DeviceSpec
from ...topology.links import Link
from ..device import Device, MemoryUsage, ReportsMemory, WrappedPreparedPlan
from ..state_store import StateStore
from ..vulkan import device_probe
from ..vulkan.open_device import open_device


class WrappedDevice(ABC):
    """A device that forwards all calls and wraps prepared plans.

    Parameters
    ----------
    device
        The name of a Vulkan device, which is opened, or any Device but the CPU.

    Raises
    ------
    DeviceError
        It is the CPU, or there is no device with this name.
    """

    def __init__(self, device: str | Device) -> None:
        if isinstance(device, str):
            info = device_probe.resolve(device)
            opened = None if info.name == "cpu" else open_device(info, info.name)
        else:
            opened = None if device.spec.kind == "cpu" else device
        if opened is None:
            raise DeviceError(
                f"[{type(self).__name__}] expected a device other than the cpu, got cpu; try a "
                "Vulkan device"
            )
        self.device = opened

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def spec(self) -> DeviceSpec:
        return self.device.spec

    def memory_usage(self) -> MemoryUsage:
        return (
            self.device.memory_usage() if isinstance(self.device, ReportsMemory) else MemoryUsage()
        )

    @property
    def link(self) -> Link | None:
        return self.device.link

    @property
    def states(self) -> StateStore:
        return self.device.states

    def holds(self, key: object) -> bool:
        return self.device.holds(key)

    @abstractmethod
    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> WrappedPreparedPlan:
        """Prepare a plan on the wrapped device, and return its prepared plan in a wrapper."""

    def close(self) -> None:
        self.device.close()


def innermost(device: Device) -> Device:
    """Return the innermost device below all wrappers; the device itself if it is no wrapper."""
    while isinstance(device, WrappedDevice):
        device = device.device
    return device
