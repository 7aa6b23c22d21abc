"""Scheduler: the user's door. Opens devices, compiles graphs for them, closes everything."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np

from .compiled import ON_FAULT, Compiled, Quarantine
from .errors import (
    DeviceError,
    DTypeError,
    GraphError,
    IndexOutOfRange,
    PlanError,
    ShapeError,
)
from .graph import Graph, Outputs, build_graph
from .ops.tensor import Tensor, convert
from .plan.machine import SYNC, DeviceSpec, Machine
from .plan.plan import Plan
from .plan.planner import POLICIES, plan_graph
from .runtime import probe
from .runtime.cpu import CpuDevice
from .runtime.device import Device, Progress
from .runtime.executor import Executor, RunStats
from .runtime.opening import open_device
from .runtime.watchdog import Watchdog
from .trace import Trace
from .types import NDArray, numpy_dtype

DEFAULT_TIMEOUT_S = 300.0

Placements = Mapping[Tensor | str, str]
Result = NDArray | tuple[NDArray, ...] | dict[str, NDArray]


class Run:
    """A compiled graph: call it with arrays by name, as often as you like, from any thread."""

    def __init__(
        self,
        compiled: Compiled,
        pack: Callable[[tuple[NDArray, ...]], Result],
        forget: Callable[[Run], None],
    ) -> None:
        self._compiled = compiled
        self._pack = pack
        self._forget = forget
        self._inputs = {node.name: node for node in compiled.plan.graph.inputs}

    @property
    def plan(self) -> Plan:
        """Where everything runs, and why: `print(run.plan.explain())`."""
        return self._compiled.plan

    @property
    def stats(self) -> RunStats | None:
        """What the last finished run cost; None before the first."""
        return self._compiled.last_stats

    def __call__(self, /, *unnamed: Any, **inputs: Any) -> Result:
        """Runs once and returns the outputs in the form in which they were given to compile."""
        return self._pack(self._compiled.run(self._feeds(unnamed, inputs, copy=False)))

    def submit(self, /, *unnamed: Any, **inputs: Any) -> Future[Result]:
        """Starts a run and returns at once. Inputs are copied, so the caller may change them."""
        return self._compiled.submit(self._feeds(unnamed, inputs, copy=True), self._pack)

    def close(self) -> None:
        """Waits for its runs and frees its memory on the devices; safe to call twice."""
        self._compiled.close()
        self._forget(self)

    def _feeds(
        self, unnamed: tuple[Any, ...], inputs: Mapping[str, Any], copy: bool
    ) -> dict[int, NDArray]:
        if unnamed:
            names = ", ".join(f"{name}=..." for name in self._inputs)
            raise GraphError(
                f"[run] expected inputs by name, got {len(unnamed)} without; try run({names})"
            )
        if inputs.keys() != self._inputs.keys():
            raise GraphError(
                f"[run] expected inputs {sorted(self._inputs)}, got {sorted(inputs)}; "
                "try the names given to vs.input"
            )
        feeds: dict[int, NDArray] = {}
        for name, value in inputs.items():
            node = self._inputs[name]
            if isinstance(value, (np.ndarray, np.generic)):
                array = np.asarray(value)
                if array.dtype != numpy_dtype(node.type.dtype):
                    raise DTypeError(
                        f"[run] expected {node.type.dtype} for input {name!r}, got {array.dtype}; "
                        f"try {name}.astype(numpy.{node.type.dtype})"
                    )
            else:
                array = convert(f"run: input {name!r}", value, node.type.dtype)
            if array.shape != node.type.shape:
                raise ShapeError(
                    f"[run] expected shape {node.type.shape} for input {name!r}, got {array.shape}"
                )
            low, high = node.attrs.get("low"), node.attrs.get("high")
            if low is not None and high is not None and array.size:
                least, most = array.min(), array.max()
                if least < low or most > high:
                    raise IndexOutOfRange(
                        f"[run] expected values in {low}..{high} for input {name!r}, as its bounds "
                        f"say, got {least}..{most}"
                    )
            fixed = np.array(array, order="C", copy=True) if copy else np.asarray(array, order="C")
            feeds[node.id] = fixed
        return feeds


class Scheduler:
    """Devices in order of priority, the CPU always last, and the graphs compiled for them.

    devices: names as `vksched devices` prints them ("vulkan:0", "vulkan:<uuid prefix>", "cpu"), or
        entries of vs.devices() or Device objects; None stands for every hardware Vulkan device. A
        name given twice opens the device twice.
    policy: "priority", or "auto", which for now is the same.
    copies: how many runs of a graph may be under way at once, each with memory of its own; "auto"
        gives two when a graph spans several devices, else one.
        Where the model leaves room for fewer there are fewer, and `plan.explain()` says so.
    timeout_s: how long a run may wait for one submission before its device counts as failed.
    sync: what a device is given at once: "split", all of a split; "level", nodes that do not depend
        on each other; "op", one node; with the latter two the host waits for each submission before
        the next. For all devices, or a mapping of device names to these.
    offload: whether an op may run on a GPU while its weights stay in host memory, streamed in for
        each run, where its arithmetic pays for that.
    on_fault: "replay" carries out a run that a device failed without that device, with a warning,
        and leaves it out of all later plans (`quarantined`); "raise" gives the error to the caller,
        as measurements want it, and refuses to run or compile what would need another plan then.
    """

    def __init__(
        self,
        devices: Sequence[str | Device | probe.DeviceInfo] | None = None,
        policy: str = "auto",
        copies: int | str = "auto",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        trace: Trace | None = None,
        sync: str | Mapping[str, str] = "split",
        offload: bool = True,
        on_fault: str = "replay",
    ) -> None:
        if copies != "auto" and (not isinstance(copies, int) or copies < 1):
            raise PlanError(f'[Scheduler] expected copies of "auto" or 1 and more, got {copies!r}')
        if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise PlanError(f"[Scheduler] expected a timeout_s above 0, got {timeout_s!r}")
        if policy not in ("auto", *POLICIES):
            raise PlanError(
                f"[Scheduler] expected a policy of auto, {', '.join(POLICIES)}, got {policy!r}"
            )
        if on_fault not in ON_FAULT:
            raise PlanError(f"[Scheduler] expected on_fault of {ON_FAULT}, got {on_fault!r}")
        if trace is not None and not isinstance(trace, Trace):
            raise PlanError(
                f"[Scheduler] expected a vs.Trace, got {trace!r}; try vs.Trace(sinks=[...])"
            )
        self.trace = trace or Trace()
        self._policy = "priority" if policy == "auto" else policy
        self._copies = copies
        self._timeout_s = timeout_s
        self._runs: list[Run] = []
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._preparing = threading.RLock()
        """Held from planning with the memory that is free until that memory is taken."""
        self._closing = False
        self._aliases: dict[str, str] = {}
        self._devices: list[Device] = []
        self._offload = bool(offload)
        self._sync: dict[str, str] = {}
        self._watchdog = Watchdog(self.trace)
        try:
            self._open(devices)
            self._sync = self._check_sync(sync)
            self._specs = {d.name: d.spec for d in self._devices}
            self._quarantine = Quarantine([d.name for d in self._devices[:-1]], on_fault)
        except BaseException:
            self.close()
            raise

    @property
    def devices(self) -> tuple[Device, ...]:
        """The open devices, in order of priority."""
        return tuple(self._devices)

    @property
    def quarantined(self) -> Mapping[str, str]:
        """The devices that failed and are not used any more: name to reason."""
        return MappingProxyType(dict(self._quarantine.reasons))

    @property
    def machine(self) -> Machine:
        """What the planner knows of the devices now."""
        return self._machine(self._quarantine.reasons)

    def _spec(self, device: Device) -> DeviceSpec:
        """Returns what the planner may know of a device, with what the user asked of it."""
        sync = self._sync.get(device.name, "split")
        spec = dataclasses.replace(self._watchdog.correct(device.spec), sync=sync)
        if not self._offload:
            spec = dataclasses.replace(spec, offload_flops_per_byte=math.inf)
        return spec

    def compile(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        progress: Progress | None = None,
    ) -> Run:
        """Plans, allocates, uploads and records once.

        outputs: one Tensor, a sequence of them or a dict of names to them; a run returns an array,
        a tuple of arrays or a dict of names to arrays.
        placement: tensors or name patterns (as in fnmatch) to device names; it never changes the
        math. A tensor wins over patterns, a later pattern over an earlier one. A weight pulls the
        ops that read it; what cannot be kept is noted in `plan.explain()`.
        """
        if isinstance(placement, Tensor) or isinstance(progress, Tensor):
            raise GraphError(
                "[compile] expected one output, a sequence or a dict, got several; try "
                "compile([a, b])"
            )
        with self._lock:
            if self._closing:
                raise DeviceError("[compile] the scheduler is closed; make a new one")
            graph, ids = build_graph(outputs)
            overrides = self._overrides(placement or {}, ids)

            def build(
                left_out: Mapping[str, str], small: bool, progress: Progress | None
            ) -> Executor:
                with self._preparing:
                    plan = self._plan(graph, overrides, self._machine(left_out), small)
                    return Executor(
                        plan, self._devices, self.trace, self._timeout_s, progress, self._numbers
                    )

            compiled = Compiled(
                build, self._quarantine, self.trace, progress, watchdog=self._watchdog
            )
            run = Run(compiled, _packer(outputs, graph), self._forget)
            self._runs.append(run)
            return run

    def close(self) -> None:
        """Waits for runs under way and accepted ones, then frees graphs and devices; safe to call
        twice. What cannot be freed, as a device does not answer, is a warning.
        """
        with self._lock:
            first, self._closing = not self._closing, True
            runs = list(self._runs)
        for run in runs:
            run.close()  # for another caller: until the first one's ends, or at once in a callback
        if first:
            for device in reversed(self._devices):
                device.close()

    def _forget(self, run: Run) -> None:
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _machine(self, left_out: Mapping[str, str]) -> Machine:
        """What the planner knows now; a device that is left out is not asked any more."""
        return Machine(
            tuple(
                dataclasses.replace(self._specs[d.name], pool="", out_of_use=left_out[d.name])
                if d.name in left_out
                else self._spec(d)
                for d in self._devices
            )
        ).verify()

    def _plan(
        self, graph: Graph, overrides: list[tuple[str | int, str]], machine: Machine, small: bool
    ) -> Plan:
        """small: with one copy, as an allocation failed."""
        resident = {
            index: frozenset(n for n, key in graph.keys.items() if device.holds(key))
            for index, device in enumerate(self._devices)
        }

        plan = plan_graph(
            graph,
            machine,
            policy=self._policy,
            overrides=overrides,
            copies=1 if small else self._copies,
            resident=resident,
        )
        note = ("copies: 1 made, as a device ran out of memory",) if small else ()
        return dataclasses.replace(plan, notes=(*plan.notes, *note))

    def _overrides(
        self, placement: Placements, ids: Mapping[Tensor, int]
    ) -> list[tuple[str | int, str]]:
        out: list[tuple[str | int, str]] = []
        if not isinstance(placement, Mapping):
            raise PlanError(f"[placement] expected a dict, got {placement!r}")
        for key, device in placement.items():
            if not isinstance(device, str) or not isinstance(key, (str, Tensor)):
                raise PlanError(
                    "[placement] expected tensors or name patterns to device names, "
                    f"got {key!r}: {device!r}"
                )
            if isinstance(key, Tensor) and key not in ids:
                raise PlanError(f"[placement] {key!r} is not part of this graph")
            target = ids[key] if isinstance(key, Tensor) else key
            out.append((target, self._resolve(device)))
        return out

    def _check_sync(self, sync: str | Mapping[str, str]) -> dict[str, str]:
        gpus = [d.name for d in self._devices if d.spec.kind != "cpu"]
        if isinstance(sync, str):
            sync = dict.fromkeys(gpus, sync) or {"": sync}
        if not isinstance(sync, Mapping):
            raise PlanError(f"[Scheduler] expected sync as a str or a mapping, got {sync!r}")
        out: dict[str, str] = {}
        for name, value in sync.items():
            if value not in SYNC:
                where = f" for {name}" if name else ""
                raise PlanError(
                    f"[Scheduler] expected a sync of {', '.join(SYNC)}{where}, got {value!r}"
                )
            known = self._resolve(name) if name else name
            if known and known not in gpus:
                raise DeviceError(
                    f"[Scheduler] expected sync for {', '.join(gpus) or 'no device'}, got {name!r}"
                )
            out[known] = value
        return out

    def _resolve(self, device: str) -> str:
        """Returns the name of an open device, which may be given as another name of it."""
        if device in self._aliases or any(d.name == device for d in self._devices):
            return self._aliases.get(device, device)
        if device.startswith("vulkan:"):
            known = probe.resolve(device).name
            return self._aliases.get(known, known)
        return device

    def _open(self, devices: Sequence[str | Device | probe.DeviceInfo] | None) -> None:
        if devices is not None and (isinstance(devices, str) or not isinstance(devices, Sequence)):
            raise DeviceError(f"[Scheduler] expected a sequence of devices, got {devices!r}")
        given: list[str | Device | probe.DeviceInfo] = (
            [info.name for info in probe.default_devices()] if devices is None else list(devices)
        )
        cpu: Device | None = None
        counts: dict[str, int] = {}
        for item in given:
            if isinstance(item, probe.DeviceInfo):
                item = item.name
            if not isinstance(item, str):
                if not hasattr(item, "spec"):
                    raise DeviceError(f"[Scheduler] expected names or devices, got {item!r}")
                if item is cpu or item in self._devices:
                    raise DeviceError(f"[Scheduler] {item.name} is given twice")
                if item.spec.kind == "cpu":
                    cpu = item
                else:
                    self._devices.append(item)
                continue
            info = probe.resolve(item)
            if info.name == "cpu":
                continue
            counts[info.name] = counts.get(info.name, 0) + 1
            count = counts[info.name]
            name = info.name if count == 1 else f"{info.name}#{count}"
            self._aliases.setdefault(item, name)
            self._aliases.setdefault(info.name, name)
            self._devices.append(open_device(info, name))
        self._devices.append(cpu or CpuDevice(probe.device_spec(probe.resolve("cpu"))))


def _packer(outputs: Outputs, graph: Graph) -> Callable[[tuple[NDArray, ...]], Result]:
    if isinstance(outputs, Tensor):
        return lambda arrays: arrays[0]
    if isinstance(outputs, Mapping):
        names = [name for name, _ in graph.outputs]
        return lambda arrays: dict(zip(names, arrays, strict=True))
    return lambda arrays: arrays
