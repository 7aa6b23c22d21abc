"""Machine: what the planner knows of the devices, as plain data.

The runtime fills it from the drivers, tests write it by hand, measured costs replace the defaults
later.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from ..errors import DeviceError, PlanError, UnsupportedOp
from ..graph import Graph, Node
from ..ops.core.lower import Lowering, choice_of, conversion_bytes, lower
from ..ops.core.op import Call, Work
from ..ops.core.variants import Choice
from .choices import Choices
from .limits import Limits

MIB = 1 << 20
GIB = 1 << 30

ALIGN_BYTES = 64
"""Every value in a device's memory starts at a multiple of this."""


OFFLOAD_FLOPS_PER_BYTE = 16.0
"""A float32 matrix makes as many with 32 rows, where the arithmetic of numpy begins to take longer
than the bus. Arithmetic per byte, not rows, as it means the same for every op and type.
"""

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
    pool: devices with the same name here share one memory, as a GPU opened twice does. own_buffers:
    every value gets a buffer of its own, shared with none that lives at the same time:
    synchronization validation sees whole buffers, and can then judge every barrier.
    windows_apart: what the host can see lies in the computer's memory, not in the device's own, as
    with a discrete card. sync: one of SYNC. offload_flops_per_byte: from how much arithmetic per
    byte of its weights in host memory on an op runs here, the weights streamed in for each run;
    inf: never. out_of_use: why nothing may be placed here, as the device failed; "" for one that
    works.
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

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Returns why this device cannot run a node, or None when it can."""
        if self.kind == "cpu":
            return None
        if self.out_of_use:
            return f"it is out of use, {self.out_of_use}"
        # of a leaf a device holds all, though a node may read a view of a part only
        held = [graph.nodes[i].type for i in (*graph.leaves_read(node), *node.inputs)]
        for type_ in (*held, node.type):
            if type_.device_bytes > self.page_bytes // ALIGN_BYTES * ALIGN_BYTES:
                return (
                    f"{type_} takes {type_.device_bytes} bytes, over the largest buffer of "
                    f"{self.page_bytes}"
                )
        unfit = graph.unfit(node)
        if unfit is not None:
            return unfit
        try:
            need = self.lower(graph, node).scratch_words * 4
        except UnsupportedOp as error:
            return str(error)
        if need > self.page_bytes:
            return f"it needs {need} bytes beside its result, over the largest buffer"
        return None

    def lower(self, graph: Graph, node: Node) -> Lowering:
        """Returns the dispatches of a node on this device; raises UnsupportedOp with the reason."""
        return lower(node.declaration, self.call(graph, node))

    def choice(self, graph: Graph, node: Node) -> Choice:
        """Returns the variant of its kernel by which a node runs on this device."""
        return choice_of(node.declaration, self.call(graph, node))

    def call(self, graph: Graph, node: Node) -> Call:
        """Returns a node as its op sees it."""
        return Call(graph.input_types(node), node.type, node.attrs, self.limits)

    def split_seconds(self, graph: Graph, nodes: Iterable[int]) -> float:
        """Returns the estimated time of some nodes in one submission."""
        return self.submit_s + sum(self.node_seconds(graph, graph.nodes[n]) for n in nodes)

    def node_seconds(self, graph: Graph, node: Node) -> float:
        """Returns the estimated time of one node."""
        op, call = node.declaration, self.call(graph, node)
        work = op.work(call.inputs, call.output, call.attrs)
        if self.kind != "cpu":
            beside = conversion_bytes(op, call)
            work = replace(work, bytes_moved=work.bytes_moved + beside)
        return self.seconds(work)

    def seconds(self, work: Work) -> float:
        """Returns the time of some work on this device: the slowest of arithmetic, memory and what
        goes on in order.
        """
        in_order = 0.0 if self.kind == "cpu" else work.rounds * self.round_s
        least_s = max(work.flops / self.flops_per_s, work.bytes_moved / self.bytes_per_s, in_order)
        return self.slowdown * least_s


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices in priority order, the CPU last."""

    devices: tuple[DeviceSpec, ...]

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

    def index(self, name: str) -> int:
        """Returns the position of a device by name."""
        for position, device in enumerate(self.devices):
            if device.name == name:
                return position
        known = ", ".join(d.name for d in self.devices)
        raise DeviceError(f"[placement] expected one of {known}, got {name!r}")

    def as_dict(self) -> dict[str, Any]:
        """Returns the machine as plain data, of which `from_dict` makes it again."""
        return {"devices": [spec_as_dict(spec) for spec in self.devices]}

    @staticmethod
    def from_dict(data: object) -> Machine:
        """Returns a machine from plain data, as JSON gives it: one that is here, or is not.

        Of a device, name and kind must be there; what else is left out has its default. A CPU is
        added where none is named.

        Raises:
            PlanError: what is wrong, and where.
        """
        found = data.get("devices") if isinstance(data, Mapping) else None
        if not isinstance(found, list) or set(data) - {"devices"}:  # type: ignore[call-overload]
            raise PlanError('[machine] expected {"devices": [...]} and no more, as as_dict() gives')
        devices = [spec_from_dict(entry, f"device {i}") for i, entry in enumerate(found)]
        if all(spec.kind != "cpu" for spec in devices):
            devices.append(DeviceSpec("cpu", "cpu", "numpy"))
        return Machine(tuple(devices)).verify()


KINDS = ("vulkan", "null", "cpu")


def spec_as_dict(spec: DeviceSpec) -> dict[str, Any]:
    """Returns a device as plain data that json.dumps takes."""
    out = asdict(spec)
    out["limits"] = {k: list(v) if isinstance(v, tuple) else v for k, v in out["limits"].items()}
    out["limits"]["tuned"] = dict(spec.limits.tuned)
    return out


def spec_from_dict(data: object, where: str) -> DeviceSpec:
    """Returns a device from plain data."""
    given = _fill(DeviceSpec("", ""), data, where)
    spec = (
        replace(given, limits=_fill(Limits(), data["limits"], f"the limits of {where}"))
        if isinstance(data, Mapping) and "limits" in data
        else given
    )
    if not spec.name or spec.kind not in KINDS:
        raise PlanError(
            f"[machine] expected a name and a kind of {', '.join(KINDS)} for {where}, got "
            f"{spec.name!r} and {spec.kind!r}"
        )
    if not (spec.flops_per_s > 0 and spec.bytes_per_s > 0):
        raise PlanError(f"[machine] expected speeds above 0 for {where}, got 0")
    return spec


_Record = TypeVar("_Record", DeviceSpec, Limits)


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
        if not isinstance(names[key], Limits):
            out[key] = _as_type(names[key], value, f"{key} of {where}")
    return replace(defaults, **out)


def _as_type(default: object, value: object, where: str) -> object:
    if default is None and value is None:
        return None
    if isinstance(default, Choices) and isinstance(value, Mapping):
        if all(isinstance(word, str) for pair in value.items() for word in pair):
            return Choices(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        if len(value) == len(default):
            return tuple(_as_type(d, v, where) for d, v in zip(default, value, strict=True))
    elif isinstance(default, float) and number and math.isfinite(value) and value >= 0:  # type: ignore[arg-type,operator]
        return float(value)  # type: ignore[arg-type]
    elif isinstance(default, (bool, str)) and type(value) is type(default):
        return value
    elif type(default) is int and type(value) is int and value >= 0:
        return value
    if isinstance(default, Choices):
        raise PlanError(f"[machine] expected calls to names of variants as {where}, got {value!r}")
    what = f"{len(default)} numbers" if isinstance(default, tuple) else type(default).__name__
    raise PlanError(f"[machine] expected {what} of 0 or more as {where}, got {value!r}")
