"""Machine: what the planner knows of the devices, as plain data.

The runtime fills it from the drivers, tests write it by hand, and the tuner adds what it measured.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from ..common.errors import DeviceError, PlanError
from .choices import Choices
from .costs import Costs
from .hosts import CALLER, CPU, check_name, host_of, on
from .limits import Limits
from .links import NETWORK, Link, Links

MIB = 1 << 20
GIB = 1 << 30

ALIGN_BYTES = 64
"""Every value in a device's memory starts at a multiple of this."""


OFFLOAD_FLOPS_PER_BYTE = 16.0
"""A float32 matrix makes as many with 32 rows, where the arithmetic of numpy begins to take longer
than the bus. Arithmetic per byte, not rows, as it means the same for every op and type.
"""

LEAST_PER_S = 1.0
"""Arithmetic or bytes of the slowest device and link; with less, seconds overflow."""

SYNC = ("split", "level", "op")
"""What a device is given at once. "split": all of a split. "level": nodes of a split that do not
depend on each other; "op": one node. With the latter two the host waits for each submission before
it makes the next one on that device.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as the planner sees it.

    name: as the user addresses it. kind: "vulkan", "null" or "cpu". label: the driver's name for
    it. driver: the driver's own name and version. memory_bytes: what plans may use. page_bytes: the
    largest single buffer. flops_per_s, bytes_per_s, submit_s, launch_s: rough speeds, which count
    until costs are measured: of arithmetic, of memory, of a submission, and of each call in one.
    round_s: the time of one round of a loop that waits for memory; numpy does not loop that way.
    slowdown: how many times longer than by these speeds everything takes, as measured.
    pool: devices with the same name here share one memory, as a GPU opened twice does; of different
    memory_bytes the least of those that take some counts. own_buffers: every value gets a buffer of
    its own, shared with none that lives at the same time: synchronization validation sees whole
    buffers, and can then judge every barrier.
    windows_apart: what the host can see lies in the computer's memory, not in the device's own, as
    with a discrete card. sync: one of SYNC. offload_flops_per_byte: from how much arithmetic per
    byte of its weights in host memory on an op runs here, the weights streamed in for each run;
    inf, in files the word infinite: never. out_of_use: why nothing may be placed here, as the
    device failed; "" for one that works. costs: what was measured of its speed; `plan/cost.py`
    turns that into seconds.
    onnx_ops: whether it computes nodes of ONNX files that no op expresses, by the onnx package. One
    of another host does so only if its owner allows that.
    busy_watts, idle_watts: what it takes while it works, and while it does not; None: assumed by
    its kind, see power.py.
    """

    name: str
    kind: str
    label: str = ""
    driver: str = ""
    limits: Limits = field(default_factory=Limits)
    memory_bytes: int = 4 * GIB
    page_bytes: int = 128 * MIB
    flops_per_s: float = 1e11
    bytes_per_s: float = 2e10
    submit_s: float = 50e-6
    round_s: float = 5e-7
    slowdown: float = 1.0
    pool: str = ""
    own_buffers: bool = False
    windows_apart: bool = False
    sync: str = "split"
    offload_flops_per_byte: float = OFFLOAD_FLOPS_PER_BYTE
    out_of_use: str = ""
    costs: Costs = Costs()
    busy_watts: float | None = None
    idle_watts: float | None = None
    launch_s: float = 0.0
    onnx_ops: bool = True

    @property
    def on_cores(self) -> bool:
        """Whether it computes on the cores of its host, as numpy and software drivers do."""
        return self.kind == "cpu" or self.limits.software


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices in priority order, the caller's CPU last.

    Devices of other hosts have their host before their name, as "node1/vulkan:0", see hosts.py. Of
    each of them one may be a CPU, "node1/cpu", behind the host's other devices.
    """

    devices: tuple[DeviceSpec, ...]
    links: Links = Links()
    hosts: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The computers, in the order of their devices; the caller's own one is among them."""
    order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """All devices, the CPUs behind all others, the caller's last."""
    _hosts: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _cpus: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _pools: Mapping[tuple[str, str], tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        hosts = tuple(host_of(spec.name) for spec in self.devices)
        pools: dict[tuple[str, str], tuple[int, ...]] = {}
        for device, (host, spec) in enumerate(zip(hosts, self.devices, strict=True)):
            if spec.pool:
                key = host, spec.pool
                pools[key] = (*pools.get(key, ()), device)
        cpus = [device for device, spec in enumerate(self.devices) if spec.kind == "cpu"]
        others = [device for device, spec in enumerate(self.devices) if spec.kind != "cpu"]
        for name, value in (
            ("hosts", tuple(dict.fromkeys(hosts))),
            ("order", (*others, *cpus)),
            ("_hosts", hosts),
            ("_numbers", {spec.name: device for device, spec in enumerate(self.devices)}),
            ("_cpus", {hosts[device]: device for device in cpus}),
            ("_pools", pools),
        ):
            object.__setattr__(self, name, value)

    def verify(self) -> Machine:
        """Returns the machine after checking names, and that the last device of each host, where it
        has one, and the last one of all is a CPU.
        """
        names = [d.name for d in self.devices]
        cpus = [d for d, spec in enumerate(self.devices) if spec.kind == "cpu"]
        if not names or cpus[-1:] != [self.cpu] or self._hosts[-1] != CALLER:
            raise PlanError(f"[machine] expected one cpu, as the last device, got {names}")
        last = {host: device for device, host in enumerate(self._hosts)}
        for cpu in cpus:
            host = self._hosts[cpu]
            if last[host] != cpu or (host != CALLER and names[cpu] != on(host, CPU)):
                expected = f"one cpu of {host}, {on(host, CPU)}," if host else "one cpu,"
                raise PlanError(
                    f"[machine] expected {expected} as the last device, got {names[cpu]} among "
                    f"{names}"
                )
        for device in self.devices:
            check_name(device.name)
            if device.sync not in SYNC:
                raise PlanError(
                    f"[machine] expected a sync of {', '.join(SYNC)} for {device.name}, "
                    f"got {device.sync!r}"
                )
        if len(set(names)) != len(names):
            raise PlanError(f"[machine] expected distinct device names, got {names}")
        return self

    def pool(self, device: int) -> tuple[int, ...]:
        """Returns the devices that share a device's memory, itself included, in order."""
        key = self._hosts[device], self.devices[device].pool
        return self._pools[key] if key[1] else (device,)

    @property
    def pools(self) -> tuple[tuple[int, ...], ...]:
        """For each memory but the caller's own the devices that share it."""
        return tuple(dict.fromkeys(self.pool(d) for d in range(self.cpu)))

    @property
    def queues(self) -> tuple[int, ...]:
        """For each device the first one with whose work its own takes turns: itself, or, as each of
        them takes all cores, the first of those that compute on the cores of its host.
        """
        first: dict[str, int] = {}
        return tuple(
            first.setdefault(self._hosts[device], device) if spec.on_cores else device
            for device, spec in enumerate(self.devices)
        )

    @property
    def cpu(self) -> int:
        """The caller's CPU, which takes what no other device can."""
        return len(self.devices) - 1

    def host_of(self, device: int) -> str:
        """Returns the host of a device, "" for the caller's own."""
        return self._hosts[device]

    def cpu_of(self, device: int) -> int | None:
        """Returns the CPU of a device's host; None where the machine has none of that host."""
        return self._cpus.get(self._hosts[device])

    def is_cpu(self, device: int) -> bool:
        """Whether a device is a CPU: its values are arrays of its host."""
        return self.devices[device].kind == "cpu"

    def alike(self) -> list[int]:
        """Returns for each device the first one with the same figures: what that can run, and how
        long it takes, holds for the other, too.
        """
        first: dict[DeviceSpec, int] = {}
        return [
            first.setdefault(replace(spec, name="", label="", pool=""), device)
            for device, spec in enumerate(self.devices)
        ]

    def memory_of(self, host: str) -> str:
        """Returns the name that links have for the memory of a host, that of its CPU."""
        cpu = self._cpus.get(host)
        return on(host, CPU) if cpu is None else self.devices[cpu].name

    def link_in(self, device: int) -> Link:
        """Returns the link from the memory of a device's host to the device."""
        return self.links.between(self.memory_of(self._hosts[device]), self.devices[device].name)

    def link_out(self, device: int) -> Link:
        """Returns the link from a device to the memory of its host."""
        return self.links.between(self.devices[device].name, self.memory_of(self._hosts[device]))

    def link_between(self, source: str, target: str) -> Link:
        """Returns the link from the memory of one host to that of another."""
        return self.links.over_network(self.memory_of(source), self.memory_of(target))

    def way(self, source: int, target: int) -> Link:
        """Returns the link from one device to another, which goes by the memory of their hosts."""
        legs = [link for _, _, link in self.legs(source, target)]
        if len(legs) == 1:
            return legs[0]
        slowness = sum(1 / leg.bytes_per_s for leg in legs)
        return Link(1 / slowness if slowness else math.inf, sum(leg.latency_s for leg in legs))

    def legs(self, source: int, target: int) -> list[tuple[str, str, Link]]:
        """Returns the links of the way from one device to another, each with its ends: to the
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
        """Returns the position of a device by name."""
        found = self._numbers.get(name)
        if found is not None:
            return found
        known = ", ".join(d.name for d in self.devices)
        raise DeviceError(
            f"[placement] expected one of {known}, got {name!r}; try one of these, or name that "
            "one among the devices too"
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the machine as plain data; `from_dict` makes a machine of that."""
        out: dict[str, Any] = {"devices": [spec_as_dict(spec) for spec in self.devices]}
        if self.links.pairs:
            out["links"] = [
                {"between": [a, b], **_worded(asdict(link))} for a, b, link in self.links.pairs
            ]
        if self.links.network != NETWORK:
            out["network"] = _worded(asdict(self.links.network))
        return out

    @staticmethod
    def from_dict(data: object) -> Machine:
        """Returns a machine from plain data, as JSON gives it: one that is here, or is not.

        Of a device, name and kind must be there; what else is left out has its default. A CPU is
        added where none is named.

        Raises:
            PlanError: what is wrong, and where.
        """
        found = data.get("devices") if isinstance(data, Mapping) else None
        known = {"devices", "links", "network"}
        if not isinstance(found, list) or set(data) - known:  # type: ignore[call-overload]
            raise PlanError(
                '[machine] expected {"devices": [...]}, maybe "links" and "network", and no more, '
                "as as_dict() gives"
            )
        devices = [spec_from_dict(entry, f"device {i}") for i, entry in enumerate(found)]
        if all(spec.kind != "cpu" or host_of(spec.name) != CALLER for spec in devices):
            devices.append(DeviceSpec(CPU, "cpu", "numpy"))
        assert isinstance(data, Mapping)
        machine = Machine(tuple(devices))
        ends = {*(spec.name for spec in devices), *map(machine.memory_of, machine.hosts)}
        network = _speed(_fill(NETWORK, data.get("network", {}), "the network"), "the network")
        links = Links(_links(data.get("links", []), ends), network=network)
        return replace(machine, links=links).verify()


KINDS = ("vulkan", "null", "cpu")
INFINITE = "infinite"
"""What stands for infinity in plain data, as JSON has no number for it."""
UNBOUNDED = {"offload_flops_per_byte": DeviceSpec, "bytes_per_s": Link}
"""The fields that may be infinite."""


def _worded(fields_: dict[str, Any]) -> dict[str, Any]:
    return {k: INFINITE if value == math.inf else value for k, value in fields_.items()}


def spec_as_dict(spec: DeviceSpec) -> dict[str, Any]:
    """Returns a device as plain data that json.dumps takes; what is infinite as a word."""
    out = _worded(asdict(spec))
    out["limits"] = {k: list(v) if isinstance(v, tuple) else v for k, v in out["limits"].items()}
    out["limits"]["tuned"] = dict(spec.limits.tuned)
    del out["costs"]
    if spec.costs != Costs():
        out["costs"] = spec.costs.as_dict()
    return {key: value for key, value in out.items() if value is not None}


def spec_from_dict(data: object, where: str) -> DeviceSpec:
    """Returns a device from plain data."""
    spec = _fill(DeviceSpec("", ""), data, where)
    if isinstance(data, Mapping) and "limits" in data:
        spec = replace(spec, limits=_limits(data["limits"], f"the limits of {where}"))
    if isinstance(data, Mapping) and "costs" in data:
        spec = replace(spec, costs=Costs.from_dict(data["costs"], f"the costs of {where}"))
    if not spec.name or spec.kind not in KINDS:
        raise PlanError(
            f"[machine] expected a name and a kind of {', '.join(KINDS)} for {where}, got "
            f"{spec.name!r} and {spec.kind!r}"
        )
    if min(spec.flops_per_s, spec.bytes_per_s) < LEAST_PER_S:
        raise PlanError(
            f"[machine] expected speeds of at least {LEAST_PER_S:g} a second for {where}, got "
            f"{spec.flops_per_s:g} flops_per_s and {spec.bytes_per_s:g} bytes_per_s"
        )
    if not spec.slowdown > 0:
        raise PlanError(f"[machine] expected a slowdown above 0 for {where}, got 0; try 1")
    if spec.busy_watts is not None and spec.busy_watts < (spec.idle_watts or 0.0):
        raise PlanError(
            f"[machine] expected busy_watts of at least idle_watts for {where}, got "
            f"{spec.busy_watts:g} and {spec.idle_watts:g}"
        )
    return spec


def _limits(data: object, where: str) -> Limits:
    """Returns limits from plain data; with one of 0 no kernel could run."""
    least = Limits()
    limits = _fill(least, data, where)
    for name in (field_.name for field_ in fields(Limits)):
        given, known = getattr(limits, name), getattr(least, name)
        many = given if isinstance(given, tuple) else (given,)
        if any(type(each) is int and each < 1 for each in many):
            raise PlanError(
                f"[machine] expected {name} above 0 for {where}, got {given}; every device of "
                f"Vulkan 1.1 has at least {known}"
            )
    return limits


def _links(data: object, names: set[str]) -> tuple[tuple[str, str, Link], ...]:
    """Returns the links between devices of these names from plain data."""
    out: list[tuple[str, str, Link]] = []
    for entry in data if isinstance(data, list) else [data]:
        given = entry if isinstance(entry, Mapping) else {}
        ends = given.get("between")
        if (
            not isinstance(ends, (list, tuple))
            or len(ends) != 2
            or not all(isinstance(end, str) and end in names for end in ends)
            or ends[0] == ends[1]
        ):
            raise PlanError(
                f'[machine] expected "between" with two of {", ".join(sorted(names))} in each of '
                f"the links, got {entry!r}"
            )
        rest = {key: value for key, value in given.items() if key != "between"}
        where = f"the link of {ends[0]} and {ends[1]}"
        out.append((ends[0], ends[1], _speed(_fill(Link(), rest, where), where)))
    return tuple(out)


def _speed(link: Link, where: str) -> Link:
    """Returns a link after checking that its bytes get through."""
    if link.bytes_per_s < LEAST_PER_S:
        raise PlanError(
            f"[machine] expected at least {LEAST_PER_S:g} byte a second for {where}, got "
            f"{link.bytes_per_s:g}"
        )
    return link


LISTS: dict[str, object] = {"matrices": "", "subgroup_sizes": 0}
"""The fields of any length, with a value that stands for the type of each."""

_Record = TypeVar("_Record", DeviceSpec, Limits, Link)


def _fill(defaults: _Record, data: object, where: str) -> _Record:
    """Returns a record with the fields that plain data names; each must be of its default's
    type.
    """
    names = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    if not isinstance(data, Mapping):
        raise PlanError(f"[machine] expected a mapping for {where}, got {data!r}")
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1, 0.4)
            hint = close[0] if close else ", ".join(names)
            raise PlanError(f"[machine] {where} has no field {key!r}; try {hint}")
        if value == INFINITE and UNBOUNDED.get(key) is type(defaults):
            out[key] = math.inf
        elif key in LISTS and isinstance(value, (list, tuple)):
            out[key] = tuple(_as_type(LISTS[key], v, f"each of {key} of {where}") for v in value)
        elif not isinstance(names[key], (Limits, Costs)):
            out[key] = _as_type(names[key], value, f"{key} of {where}")
    return replace(defaults, **out)


def _as_type(default: object, value: object, where: str) -> object:
    if default is None:
        if value is None:
            return None
        default = 0.0
    if isinstance(default, Choices) and isinstance(value, Mapping):
        if all(isinstance(word, str) for pair in value.items() for word in pair):
            return Choices(value)
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        if len(value) == len(default):
            return tuple(_as_type(d, v, where) for d, v in zip(default, value, strict=True))
    elif isinstance(default, float) and (number := as_number(value)) is not None:
        return number
    elif isinstance(default, (bool, str)) and type(value) is type(default):
        return value
    elif type(default) is int and type(value) is int and as_number(value) is not None:
        return value
    if isinstance(default, Choices):
        raise PlanError(f"[machine] expected calls to names of variants as {where}, got {value!r}")
    what = _WORDS.get(type(default), "a number of 0 or more")
    if isinstance(default, tuple):
        what = f"{len(default)} whole numbers of 0 or more" if default else "a list"
    raise PlanError(f"[machine] expected {what} as {where}, got {value!r}")


_WORDS: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number of 0 or more",
}


def as_number(value: object, factor: float = 1.0) -> float | None:
    """Returns plain data as a number, times a factor; None for what is none, is below 0 or is not
    finite then.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value) * factor
    except OverflowError:  # a whole number of some hundred digits
        return None
    return number if 0 <= number < math.inf else None
