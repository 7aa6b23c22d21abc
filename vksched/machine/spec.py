"""Machine: what the planner knows of the devices, as plain data.

The runtime fills it from the drivers, tests write it by hand, and the tuner adds what it measured.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from ..errors import DeviceError, PlanError
from .choices import Choices
from .costs import Costs
from .limits import Limits
from .links import Link, Links

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
    largest single buffer. flops_per_s, bytes_per_s, submit_s: rough speeds, for the simulated clock
    and later cost models. round_s: the time of one round of a loop that waits for memory; numpy
    does not loop that way. slowdown: how many times longer than by these speeds everything takes,
    as measured.
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


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices in priority order, the CPU last."""

    devices: tuple[DeviceSpec, ...]
    links: Links = Links()

    def verify(self) -> Machine:
        """Returns the machine after checking names and that exactly the last device is the CPU."""
        names = [d.name for d in self.devices]
        if not names or [d.kind == "cpu" for d in self.devices] != [False] * (len(names) - 1) + [
            True
        ]:
            raise PlanError(f"[machine] expected one cpu, as the last device, got {names}")
        for device in self.devices:
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
        name = self.devices[device].pool
        if not name:
            return (device,)
        return tuple(i for i, d in enumerate(self.devices) if d.pool == name)

    @property
    def pools(self) -> tuple[tuple[int, ...], ...]:
        """For each memory of a GPU the devices that share it."""
        return tuple(dict.fromkeys(self.pool(d) for d in range(self.cpu)))

    @property
    def cpu(self) -> int:
        return len(self.devices) - 1

    def way(self, source: int, target: int) -> Link:
        """Returns the link from one device to another, which goes by the host's memory."""
        devices, host = self.devices, self.cpu
        between, name = self.links.between, devices[host].name
        legs = [between(devices[source].name, name)] if source != host else []
        legs += [between(name, devices[target].name)] if target != host else []
        if len(legs) == 1:
            return legs[0]
        slowness = sum(1 / leg.bytes_per_s for leg in legs)
        return Link(1 / slowness if slowness else math.inf, sum(leg.latency_s for leg in legs))

    def index(self, name: str) -> int:
        """Returns the position of a device by name."""
        for position, device in enumerate(self.devices):
            if device.name == name:
                return position
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
        known = {"devices", "links"}
        if not isinstance(found, list) or set(data) - known:  # type: ignore[call-overload]
            raise PlanError(
                '[machine] expected {"devices": [...]}, maybe "links", and no more, as as_dict() '
                "gives"
            )
        devices = [spec_from_dict(entry, f"device {i}") for i, entry in enumerate(found)]
        if all(spec.kind != "cpu" for spec in devices):
            devices.append(DeviceSpec("cpu", "cpu", "numpy"))
        assert isinstance(data, Mapping)
        links = _links(data.get("links", []), {spec.name for spec in devices})
        return Machine(tuple(devices), links).verify()


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


def _links(data: object, names: set[str]) -> Links:
    """Returns the links between devices of these names from plain data."""
    out: list[tuple[str, str, Link]] = []
    for entry in data if isinstance(data, list) else [data]:
        given = entry if isinstance(entry, Mapping) else {}
        ends = given.get("between")
        known = isinstance(ends, (list, tuple)) and [n for n in ends if n in sorted(names)]
        if (
            not isinstance(ends, (list, tuple))
            or len(ends) != 2
            or known != list(ends)
            or ends[0] == ends[1]
        ):
            raise PlanError(
                f'[machine] expected "between" with two of {", ".join(sorted(names))} in each of '
                f"the links, got {entry!r}"
            )
        rest = {key: value for key, value in given.items() if key != "between"}
        link = _fill(Link(), rest, f"the link of {ends[0]} and {ends[1]}")
        if link.bytes_per_s < LEAST_PER_S:
            raise PlanError(
                f"[machine] expected at least {LEAST_PER_S:g} byte a second between {ends[0]} and "
                f"{ends[1]}, got {link.bytes_per_s:g}"
            )
        out.append((ends[0], ends[1], link))
    return Links(tuple(out))


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
