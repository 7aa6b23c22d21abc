"""Topology: the devices and links that the planner knows, as plain data.

The runtime fills it from the drivers, tests write it by hand, and the tuner adds measured costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..common.errors import DeviceError, PlanError
from .device_spec import (
    GRANULARITIES,
    DeviceSpec,
    _fill,
    _speed,
    _worded,
    spec_as_dict,
    spec_from_dict,
)
from .host_names import CPU, DRIVER, check_name, host_of, on
from .links import NETWORK, Link, Links


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices in priority order, the driver's CPU last.

    Devices of other hosts have their host as a prefix, as "node1/vulkan:0", see host_names.py. One
    device of each other host may be a CPU, "node1/cpu", after the host's other devices.
    """

    devices: tuple[DeviceSpec, ...]
    links: Links = Links()
    hosts: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The hosts, in the order of their devices, including the driver."""
    order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """All devices, with the CPUs last and the driver's CPU at the end."""
    _hosts: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _cpus: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _memory_nodes: Mapping[tuple[str, str], tuple[int, ...]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        hosts = tuple(host_of(spec.name) for spec in self.devices)
        memory_nodes: dict[tuple[str, str], tuple[int, ...]] = {}
        for device, (host, spec) in enumerate(zip(hosts, self.devices, strict=True)):
            if spec.memory_node:
                key = host, spec.memory_node
                memory_nodes[key] = (*memory_nodes.get(key, ()), device)
        cpus = [device for device, spec in enumerate(self.devices) if spec.kind == "cpu"]
        others = [device for device, spec in enumerate(self.devices) if spec.kind != "cpu"]
        for name, value in (
            ("hosts", tuple(dict.fromkeys(hosts))),
            ("order", (*others, *cpus)),
            ("_hosts", hosts),
            ("_numbers", {spec.name: device for device, spec in enumerate(self.devices)}),
            ("_cpus", {hosts[device]: device for device in cpus}),
            ("_memory_nodes", memory_nodes),
        ):
            object.__setattr__(self, name, value)

    def verify(self) -> Topology:
        """Return the topology after checking names, and that the last device of each host (if the
        host has a CPU) and the last one of all is a CPU.
        """
        names = [d.name for d in self.devices]
        cpus = [d for d, spec in enumerate(self.devices) if spec.kind == "cpu"]
        if not names or cpus[-1:] != [self.cpu] or self._hosts[-1] != DRIVER:
            raise PlanError(f"[topology] expected one cpu, as the last device, got {names}")
        last = {host: device for device, host in enumerate(self._hosts)}
        for cpu in cpus:
            host = self._hosts[cpu]
            if last[host] != cpu or (host != DRIVER and names[cpu] != on(host, CPU)):
                expected = f"one cpu of {host}, {on(host, CPU)}," if host else "one cpu,"
                raise PlanError(
                    f"[topology] expected {expected} as the last device, got {names[cpu]} among "
                    f"{names}"
                )
        for device in self.devices:
            check_name(device.name)
            if device.submit_granularity not in GRANULARITIES:
                raise PlanError(
                    f"[topology] expected a submit_granularity of {', '.join(GRANULARITIES)} for "
                    f"{device.name}, got {device.submit_granularity!r}"
                )
        if len(set(names)) != len(names):
            raise PlanError(f"[topology] expected distinct device names, got {names}")
        return self

    def memory_peers(self, device: int) -> tuple[int, ...]:
        """Return the devices that share a device's memory, itself included, in order."""
        key = self._hosts[device], self.devices[device].memory_node
        return self._memory_nodes[key] if key[1] else (device,)

    @property
    def memory_nodes(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each memory except the driver's own."""
        return tuple(dict.fromkeys(self.memory_peers(d) for d in range(self.cpu)))

    @property
    def queues(self) -> tuple[int, ...]:
        """For each device, the first device with which it shares a queue: itself, or the first
        device that computes on the cores of its host, because each of these uses all cores.
        """
        first: dict[str, int] = {}
        return tuple(
            first.setdefault(self._hosts[device], device) if spec.on_cores else device
            for device, spec in enumerate(self.devices)
        )

    @property
    def cpu(self) -> int:
        """The driver's CPU, which runs the ops that no other device supports."""
        return len(self.devices) - 1

    def host_of(self, device: int) -> str:
        """Return the host of a device, "" for the driver."""
        return self._hosts[device]

    def cpu_of(self, device: int) -> int | None:
        """Return the CPU of a device's host; None if the topology has none."""
        return self._cpus.get(self._hosts[device])

    def is_cpu(self, device: int) -> bool:
        """Return True if a device is a CPU: its values are arrays of its host."""
        return self.devices[device].kind == "cpu"

    def alike(self) -> list[int]:
        """Return, for each device, the first device with equal specs: op support and costs of one
        hold for the other.
        """
        first: dict[DeviceSpec, int] = {}
        return [
            first.setdefault(replace(spec, name="", label="", memory_node=""), device)
            for device, spec in enumerate(self.devices)
        ]

    def memory_of(self, host: str) -> str:
        """Return the name of a host's memory in links: that of its CPU."""
        cpu = self._cpus.get(host)
        return on(host, CPU) if cpu is None else self.devices[cpu].name

    def link_in(self, device: int) -> Link:
        """Return the link from the memory of a device's host to the device."""
        return self.links.between(self.memory_of(self._hosts[device]), self.devices[device].name)

    def link_out(self, device: int) -> Link:
        """Return the link from a device to the memory of its host."""
        return self.links.between(self.devices[device].name, self.memory_of(self._hosts[device]))

    def link_between(self, source: str, target: str) -> Link:
        """Return the link from the memory of one host to that of another."""
        return self.links.over_network(self.memory_of(source), self.memory_of(target))

    def route(self, source: int, target: int) -> Link:
        """Return the link from one device to another through the memories of their hosts."""
        legs = [link for _, _, link in self.legs(source, target)]
        if len(legs) == 1:
            return legs[0]
        slowness = sum(1 / leg.bytes_per_s for leg in legs)
        return Link(1 / slowness if slowness else math.inf, sum(leg.latency_s for leg in legs))

    def legs(self, source: int, target: int) -> list[tuple[str, str, Link]]:
        """Return the links of the route from one device to another, each with its ends: to the
        memory of the host, over the network, to the other device.
        """
        here, there = (self._hosts[device] for device in (source, target))
        a, b = (self.devices[device].name for device in (source, target))
        out: list[tuple[str, str, Link]] = []
        if not self.is_cpu(source):
            out.append((a, self.memory_of(here), self.link_out(source)))
        if here != there:
            ends = self.memory_of(here), self.memory_of(there)
            out.append((*ends, self.links.over_network(*ends)))
        if not self.is_cpu(target):
            out.append((self.memory_of(there), b, self.link_in(target)))
        return out

    def index(self, name: str) -> int:
        """Return the position of a device by name."""
        found = self._numbers.get(name)
        if found is not None:
            return found
        known = ", ".join(d.name for d in self.devices)
        raise DeviceError(
            f"[placement] expected one of {known}, got {name!r}; try one of these, or name that "
            "one among the devices too"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the topology as plain data; `from_dict` reads it."""
        out: dict[str, Any] = {"devices": [spec_as_dict(spec) for spec in self.devices]}
        if self.links.pairs:
            out["links"] = [
                {"between": [a, b], **_worded(asdict(link))} for a, b, link in self.links.pairs
            ]
        if self.links.network != NETWORK:
            out["network"] = _worded(asdict(self.links.network))
        return out

    @staticmethod
    def from_dict(data: object) -> Topology:
        """Return a topology from plain data, as JSON has it.

        A device needs a name and a kind; other fields have defaults. A CPU is added if none is
        listed.

        Raises
        ------
        PlanError
            The data is invalid; the message names the place.
        """
        found = data.get("devices") if isinstance(data, Mapping) else None
        known = {"devices", "links", "network"}
        if not isinstance(found, list) or set(data) - known:  # type: ignore[call-overload]
            raise PlanError(
                '[topology] expected {"devices": [...]}, maybe "links" and "network", and no more, '
                "as as_dict() gives"
            )
        devices = [spec_from_dict(entry, f"device {i}") for i, entry in enumerate(found)]
        if all(spec.kind != "cpu" or host_of(spec.name) != DRIVER for spec in devices):
            devices.append(DeviceSpec(CPU, "cpu", "numpy"))
        assert isinstance(data, Mapping)
        topology = Topology(tuple(devices))
        ends = {*(spec.name for spec in devices), *map(topology.memory_of, topology.hosts)}
        network = _speed(_fill(NETWORK, data.get("network", {}), "the network"), "the network")
        links = Links(_links(data.get("links", []), ends), network=network)
        return replace(topology, links=links).verify()


def _links(data: object, names: set[str]) -> tuple[tuple[str, str, Link], ...]:
    """Return the links between devices of these names from plain data."""
    out: list[tuple[str, str, Link]] = []
    for entry in data if isinstance(data, list) else [data]:
        mapping = entry if isinstance(entry, Mapping) else {}
        ends = mapping.get("between")
        if (
            not isinstance(ends, (list, tuple))
            or len(ends) != 2
            or not all(isinstance(end, str) and end in names for end in ends)
            or ends[0] == ends[1]
        ):
            raise PlanError(
                f'[topology] expected "between" with two of {", ".join(sorted(names))} in each of '
                f"the links, got {entry!r}"
            )
        rest = {key: value for key, value in mapping.items() if key != "between"}
        where = f"the link of {ends[0]} and {ends[1]}"
        out.append((ends[0], ends[1], _speed(_fill(Link(), rest, where), where)))
    return tuple(out)
