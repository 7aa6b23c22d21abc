"""Device set: the devices of a scheduler, opened by name or passed as objects, in order of
priority, the CPU last.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from ..common.errors import DeviceError, PlanError
from ..common.fork_guard import in_child
from ..runtime.cpu.cpu_device import CpuDevice
from ..runtime.device import Device
from ..runtime.simulated.device_wrapper import WrappedDevice, innermost
from ..runtime.vulkan import device_probe
from ..runtime.vulkan.binding import keep_drivers_loaded, robust_access
from ..runtime.vulkan.open_device import open_device
from ..topology.device_spec import GRANULARITIES
from ..topology.host_names import CPU, DRIVER, host_of, on
from ..topology.links import Link
from .memory_holders import MemoryHolders
from .remote_hosts import Hosts

Wanted = Sequence[str | Device | device_probe.DeviceInfo]

_in_use: weakref.WeakSet[Device] = weakref.WeakSet()
"""Device objects in use by open schedulers; a device's states and weights belong to one
scheduler.
"""
in_child(_in_use.clear)  # the schedulers belong to the parent; its devices raise in a child


class DeviceSet:
    """Open devices.

    devices: in order of priority; the CPUs of other hosts after all other devices, the local CPU
    last. with_cpu: the CPU was named, or no device was. hosts: the other hosts. holders: owners of
    memory on the devices that they can free.
    """

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.hosts: Hosts | None = None
        self.with_cpu = True
        self.holders = MemoryHolders()
        self._aliases: dict[str, str] = {}
        self._dropped: weakref.finalize[[Hosts], DeviceSet] | None = None

    def open(
        self, devices: Wanted | None, hosts: Hosts | None = None, robust: bool = False
    ) -> None:
        """Open devices by name, and add those that are open already.

        None selects all default devices and all devices of other hosts. robust: enable memory
        bounds checks for kernels.
        """
        with keep_drivers_loaded(), robust_access() if robust else nullcontext():
            self._open(devices, hosts)

    def _open(self, devices: Wanted | None, hosts: Hosts | None) -> None:
        self.hosts = hosts
        if hosts is not None:
            self._dropped = weakref.finalize(self, _drop, hosts)
            self._dropped.atexit = False
        remote = {} if hosts is None else {device.name: device for device in hosts.devices}
        if devices is not None and (isinstance(devices, str) or not isinstance(devices, Sequence)):
            raise DeviceError(f"[Scheduler] expected a sequence of devices, got {devices!r}")
        requested: list[str | Device | device_probe.DeviceInfo] = (
            [*[info.name for info in device_probe.default_devices()], *remote]
            if devices is None
            else list(devices)
        )
        cpu: Device | None = None
        self.with_cpu = devices is None
        counts: dict[str, int] = {}
        for item in requested:
            if isinstance(item, device_probe.DeviceInfo):
                item = item.name
            if isinstance(item, str) and host_of(item) != DRIVER:
                item = _known(remote, item)
            if not isinstance(item, str):
                if not hasattr(item, "spec"):
                    raise DeviceError(f"[Scheduler] expected names or devices, got {item!r}")
                _check_distinct(item, [*self.devices, *([] if cpu is None else [cpu])])
                if item.spec.kind == "cpu" and host_of(item.name) == DRIVER:
                    cpu, self.with_cpu = item, True
                else:
                    self.devices.append(item)
                    counts[item.name] = counts.get(item.name, 0) + 1
                    self._aliases.setdefault(item.name, item.name)
                continue
            info = device_probe.resolve(item)
            if info.name == "cpu":
                self.with_cpu = True
                continue
            counts[info.name] = counts.get(info.name, 0) + 1
            count = counts[info.name]
            name = info.name if count == 1 else f"{info.name}#{count}"
            self._aliases.setdefault(item, name)
            self._aliases.setdefault(info.name, name)
            self.devices.append(open_device(info, name))
        self.devices.sort(key=lambda device: device.spec.kind == "cpu")
        self.devices.append(cpu or CpuDevice(device_probe.device_spec(device_probe.resolve("cpu"))))
        _in_use.update(map(innermost, self.devices))

    def resolve(self, device: str) -> str:
        """Return the canonical name of an open device."""
        if device in self._aliases or any(d.name == device for d in self.devices):
            return self._aliases.get(device, device)
        if device.startswith("vulkan:"):
            known = device_probe.resolve(device).name
            return self._aliases.get(known, known)
        return device

    def check_granularity(self, submit_granularity: str | Mapping[str, str]) -> dict[str, str]:
        """Return the submit granularity of each device by name."""
        names = [d.name for d in self.devices]
        gpus = [d.name for d in self.devices if d.spec.kind != "cpu"]
        if isinstance(submit_granularity, str):
            submit_granularity = dict.fromkeys(gpus, submit_granularity) or {"": submit_granularity}
        if not isinstance(submit_granularity, Mapping):
            raise PlanError(
                "[Scheduler] expected submit_granularity as a str or a mapping, got "
                f"{submit_granularity!r}"
            )
        out: dict[str, str] = {}
        for name, value in submit_granularity.items():
            if value not in GRANULARITIES:
                where = f" for {name}" if name else ""
                raise PlanError(
                    "[Scheduler] expected a submit_granularity of "
                    f"{', '.join(GRANULARITIES)}{where}, got {value!r}"
                )
            known = self.resolve(name) if name else name
            if known and known not in names:
                raise DeviceError(
                    f"[Scheduler] expected submit_granularity for {', '.join(names)}, got {name!r}"
                )
            out[known] = value
        return out

    @property
    def own(self) -> list[Device]:
        """The devices of this host."""
        return [device for device in self.devices if host_of(device.name) == DRIVER]

    def links(self) -> tuple[tuple[str, str, Link], ...]:
        """Return the links to other hosts, and from those hosts to their devices."""
        if self.hosts is None:
            return ()
        ends = [
            (device.name, on(host_of(device.name), CPU), device.link)
            for device in self.devices
            if host_of(device.name) != DRIVER and device.spec.kind != "cpu"
        ]
        return (*[(a, b, link) for a, b, link in ends if link is not None], *self.hosts.links())

    def replace(self, device: Device) -> None:
        """Replace the closed device with this device's name."""
        at = next(i for i, known in enumerate(self.devices) if known.name == device.name)
        _in_use.discard(innermost(self.devices[at]))
        self.devices[at] = device
        _in_use.add(innermost(device))

    def close(self) -> None:
        """Close all devices in reverse order, and the connections to other hosts."""
        for device in reversed(self.devices):
            device.close()
            _in_use.discard(innermost(device))
        if self._dropped is not None:
            self._dropped.detach()
        if self.hosts is not None:
            self.hosts.close()


def _drop(hosts: Hosts) -> None:
    """Close the connections of a scheduler that was dropped without `close`."""
    # the garbage collector may run on a thread that a connection waits for
    threading.Thread(target=hosts.close, name="vksched-drop", daemon=True).start()
    # last, because warnings may be errors
    warnings.warn(
        "[Scheduler] a scheduler with a cluster was not closed", ResourceWarning, stacklevel=1
    )


def _check_distinct(item: Device, before: Sequence[Device]) -> None:
    """Raise DeviceError if a device, or another one of its name, is in the list.

    before: the devices before it.
    """
    name = item.name
    if any(innermost(item) is innermost(device) for device in before):
        wrapped = isinstance(item, WrappedDevice) or any(
            isinstance(device, WrappedDevice) and device.name == name for device in before
        )
        how = (
            ", once inside a wrapper such as FaultInjectionDevice; try the wrapper alone" * wrapped
        )
        raise DeviceError(f"[Scheduler] {name} is given twice{how}")
    if any(device.name == name for device in before):
        raise DeviceError(
            f"[Scheduler] expected devices of distinct names, got two that are called {name}; try "
            "one of them, or first the open device and then the name, which opens it once more"
        )
    if innermost(item) in _in_use:
        raise DeviceError(
            f"[Scheduler] {name} is in use by another open Scheduler; try its "
            "name, which opens it once more"
        )


def _known(remote: Mapping[str, Device], name: str) -> Device:
    """Return a device of another host."""
    if name not in remote:
        known = ", ".join(remote) or "none, as the scheduler has no cluster"
        raise DeviceError(
            f"[Scheduler] expected a device of the cluster, got {name!r}; there are {known}"
        )
    return remote[name]
