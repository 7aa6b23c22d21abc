"""Device wrappers: the base of devices that inject faults or delays.

    executor --> WrappedDevice ------> the wrapped device      a subclass changes some calls;
             --> WrappedPreparedPlan --> the prepared plan     all others are forwarded

Examples: tests/engine/test_faults.py, tests/engine/test_dynamic_runs.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError
from ...plan.types.plan_types import PlanValue, Upload
from ...topology.device_spec import DeviceSpec
from ...topology.links import Link
from ..device import Device, MemoryUsage, PreparedPlan, ReportsMemory, Times, TransferTimes
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


class WrappedPreparedPlan:
    """One plan on a wrapped device; forwards all calls."""

    def __init__(self, prepared: PreparedPlan) -> None:
        self._prepared = prepared

    def begin(self, slot: int) -> None:
        self._prepared.begin(slot)

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        self._prepared.upload(slot, copy, array)

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        self._prepared.submit(slot, split, sequence_number)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        self._prepared.wait(slot, split, timeout_s)

    def ends_s(self, slot: int, split: int) -> float | None:
        return self._prepared.ends_s(slot, split)

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        self._prepared.check(slot, split, sequence_number)

    def fetch(self, slot: int, node: int) -> NDArray:
        return self._prepared.fetch(slot, node)

    def times_s(self, slot: int, split: int) -> Times:
        return self._prepared.times_s(slot, split)

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        return self._prepared.async_transfer_s(slot, split)

    def close(self) -> None:
        self._prepared.close()
