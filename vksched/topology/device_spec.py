"""DeviceSpec: the limits, speeds and memory of one device."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from ..common.errors import PlanError
from .limits import Limits, WeaklyReferenced
from .links import Link
from .perf_model import PerfModel
from .tuned_variants import TunedVariants

MIB = 1 << 20


GIB = 1 << 30


ALIGN_BYTES = 64
"""Alignment in bytes of every value in a device's memory."""


OFFLOAD_FLOPS_PER_BYTE = 16.0
"""The arithmetic intensity of a float32 matmul with 32 rows: from there on, computing with numpy
takes longer than the transfer of the weights. Operations per byte apply to every op and type, rows
do not.
"""


MIN_PER_S = 1.0
"""Lower bound of rates: slower devices and links would make seconds overflow."""


GRANULARITIES = ("split", "level", "op")
"""The content of one submission. "split": a whole split. "level": nodes of a split that do not
depend on each other. "op": one node. With the latter two the host waits for each submission before
the next one on that device.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpec(WeaklyReferenced):
    """One device as the planner sees it.

    Parameters
    ----------
    name
        The name that the user addresses it by.
    kind
        "vulkan", "null" or "cpu".
    label
        The driver's name of the device.
    driver
        The name and version of the driver.
    memory_bytes
        Memory that plans may use.
    max_buffer_bytes
        The size of the largest single buffer.
    flops_per_s, bytes_per_s, submit_s, launch_s
        Rough speeds of arithmetic and memory, and the time of a submission and of each call in
        one. They count until costs are measured.
    loop_latency_s
        The time of one loop iteration that waits for memory; numpy has no such loops.
    slowdown
        Measured factor by which everything takes longer than by these speeds.
    memory_node
        Devices with equal names share one memory, as a GPU that is opened twice. If their
        memory_bytes differ, the smallest counts.
    disable_aliasing
        Every value gets its own buffer, which no concurrent value shares. Synchronization
        validation sees whole buffers and can then check every barrier.
    unified_memory
        Host-visible memory is the device's own memory, unlike on a discrete card.
    submit_granularity
        One of GRANULARITIES.
    offload_flops_per_byte
        Arithmetic intensity from which an op with weights in host memory runs here, with its
        weights streamed in each run. inf, "infinite" in files: never.
    disabled_reason
        Why no op may be placed here after a failure; "" for a working device.
    costs
        Measured speeds; `plan/costs/node_cost.py` converts them to seconds.
    onnx_ops
        Whether it computes ONNX nodes without an op here, by the onnx package. On another host
        the owner must allow that.
    busy_watts, idle_watts
        Power while it works and while it is idle; None: assumed by kind, see power.py.
    """

    name: str
    kind: str
    label: str = ""
    driver: str = ""
    limits: Limits = field(default_factory=Limits)
    memory_bytes: int = 4 * GIB
    max_buffer_bytes: int = 128 * MIB
    flops_per_s: float = 1e11
    bytes_per_s: float = 2e10
    submit_s: float = 50e-6
    loop_latency_s: float = 5e-7
    slowdown: float = 1.0
    memory_node: str = ""
    disable_aliasing: bool = False
    unified_memory: bool = True
    submit_granularity: str = "split"
    offload_flops_per_byte: float = OFFLOAD_FLOPS_PER_BYTE
    disabled_reason: str = ""
    costs: PerfModel = PerfModel()
    busy_watts: float | None = None
    idle_watts: float | None = None
    launch_s: float = 0.0
    onnx_ops: bool = True

    @property
    def on_cores(self) -> bool:
        """Return True if it computes on the cores of its host, as numpy and software drivers do."""
        return self.kind == "cpu" or self.limits.software

    @property
    def computes_float16(self) -> bool:
        """Return True for a GPU with float16, which is no software driver."""
        return self.kind != "cpu" and self.limits.float16 and not self.limits.software


KINDS = ("vulkan", "null", "cpu")


INFINITE = "infinite"
"""The text for infinity in plain data, because JSON has no number for it."""


UNBOUNDED = {"offload_flops_per_byte": DeviceSpec, "bytes_per_s": Link}
"""Fields that may be infinite."""


def _worded(fields_: dict[str, Any]) -> dict[str, Any]:
    return {k: INFINITE if value == math.inf else value for k, value in fields_.items()}


def spec_as_dict(spec: DeviceSpec) -> dict[str, Any]:
    """Return a device as plain data for json.dumps; infinity is written as INFINITE."""
    out = _worded(asdict(spec))
    out["limits"] = {k: list(v) if isinstance(v, tuple) else v for k, v in out["limits"].items()}
    out["limits"]["tuned"] = dict(spec.limits.tuned)
    del out["costs"]
    if spec.costs != PerfModel():
        out["costs"] = spec.costs.as_dict()
    return {key: value for key, value in out.items() if value is not None}


def spec_from_dict(data: object, where: str) -> DeviceSpec:
    """Return a device from plain data."""
    spec = _fill(DeviceSpec("", ""), data, where)
    if isinstance(data, Mapping) and "limits" in data:
        spec = replace(spec, limits=_limits(data["limits"], f"the limits of {where}"))
    if isinstance(data, Mapping) and "costs" in data:
        spec = replace(spec, costs=PerfModel.from_dict(data["costs"], f"the costs of {where}"))
    if not spec.name or spec.kind not in KINDS:
        raise PlanError(
            f"[topology] expected a name and a kind of {', '.join(KINDS)} for {where}, got "
            f"{spec.name!r} and {spec.kind!r}"
        )
    if min(spec.flops_per_s, spec.bytes_per_s) < MIN_PER_S:
        raise PlanError(
            f"[topology] expected speeds of at least {MIN_PER_S:g} a second for {where}, got "
            f"{spec.flops_per_s:g} flops_per_s and {spec.bytes_per_s:g} bytes_per_s"
        )
    if not spec.slowdown > 0:
        raise PlanError(f"[topology] expected a slowdown above 0 for {where}, got 0; try 1")
    if spec.busy_watts is not None and spec.busy_watts < (spec.idle_watts or 0.0):
        raise PlanError(
            f"[topology] expected busy_watts of at least idle_watts for {where}, got "
            f"{spec.busy_watts:g} and {spec.idle_watts:g}"
        )
    return spec


def _limits(data: object, where: str) -> Limits:
    """Return limits from plain data; a limit of 0 is an error, because no kernel could run. The
    number of cores may be 0 (unknown).
    """
    defaults = Limits()
    limits = _fill(defaults, data, where)
    for name in (field_.name for field_ in fields(Limits)):
        value, known = getattr(limits, name), getattr(defaults, name)
        many = value if isinstance(value, tuple) else (value,)
        if name != "cores" and any(type(each) is int and each < 1 for each in many):
            raise PlanError(
                f"[topology] expected {name} above 0 for {where}, got {value}; every device of "
                f"Vulkan 1.1 has at least {known}"
            )
    return limits


def _speed(link: Link, where: str) -> Link:
    """Return a link after checking its rate."""
    if link.bytes_per_s < MIN_PER_S:
        raise PlanError(
            f"[topology] expected at least {MIN_PER_S:g} byte a second for {where}, got "
            f"{link.bytes_per_s:g}"
        )
    return link


LISTS: dict[str, object] = {"matrices": "", "subgroup_sizes": 0}
"""Fields of variable length, with a value of the type of their items."""


_Record = TypeVar("_Record", DeviceSpec, Limits, Link)


def _fill(defaults: _Record, data: object, where: str) -> _Record:
    """Return a record with the fields of plain data; each must have the type of its default."""
    names = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    if not isinstance(data, Mapping):
        raise PlanError(f"[topology] expected a mapping for {where}, got {data!r}")
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1, 0.4)
            hint = close[0] if close else ", ".join(names)
            raise PlanError(f"[topology] {where} has no field {key!r}; try {hint}")
        if value == INFINITE and UNBOUNDED.get(key) is type(defaults):
            out[key] = math.inf
        elif key in LISTS and isinstance(value, (list, tuple)):
            out[key] = tuple(_as_type(LISTS[key], v, f"each of {key} of {where}") for v in value)
        elif not isinstance(names[key], (Limits, PerfModel)):
            out[key] = _as_type(names[key], value, f"{key} of {where}")
    return replace(defaults, **out)


def _as_type(default: object, value: object, where: str) -> object:
    if default is None:
        if value is None:
            return None
        default = 0.0
    if isinstance(default, TunedVariants) and isinstance(value, Mapping):
        if all(isinstance(word, str) for pair in value.items() for word in pair):
            return TunedVariants(value)
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        if len(value) == len(default):
            return tuple(_as_type(d, v, where) for d, v in zip(default, value, strict=True))
    elif isinstance(default, float) and (number := as_number(value)) is not None:
        return number
    elif isinstance(default, (bool, str)) and type(value) is type(default):
        return value
    elif type(default) is int and type(value) is int and as_number(value) is not None:
        return value
    if isinstance(default, TunedVariants):
        raise PlanError(f"[topology] expected calls to names of variants as {where}, got {value!r}")
    what = _WORDS.get(type(default), "a number of 0 or more")
    if isinstance(default, tuple):
        what = f"{len(default)} whole numbers of 0 or more" if default else "a list"
    raise PlanError(f"[topology] expected {what} as {where}, got {value!r}")


_WORDS: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number of 0 or more",
}


def as_number(value: object, factor: float = 1.0) -> float | None:
    """Return plain data times a factor as a number. Return None if it is not a number, is negative
    or is not finite.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value) * factor
    except OverflowError:  # an integer with hundreds of digits
        return None
    return number if 0 <= number < math.inf else None
