"""Scheduler: the user's door. Opens devices, compiles graphs for them, closes everything."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, overload

from .engine.devices import DeviceSet
from .engine.function import Build, Function
from .engine.generations import ON_FAULT, Compiled, Quarantine
from .engine.request import Observe, Request, find_observers
from .engine.run import Run, make_packer
from .engine.states import StateTable
from .errors import DeviceError, GraphError, OutOfMemory, PlanError
from .graph import Graph, Outputs, Updates, build_graph
from .importers import ImportedModel
from .machine.spec import DeviceSpec, Machine
from .ops.core.tensor import Tensor
from .plan.plan import Plan
from .plan.planner import POLICIES, plan_graph
from .plan.tell.fallback import warn_of_fallbacks
from .runtime.device import Device, Progress
from .runtime.executor import Executor
from .runtime.fork import Owner
from .runtime.vulkan import probe
from .runtime.watchdog import Watchdog
from .switches import is_on
from .trace import Sink, Trace, as_trace
from .tuner.store import Store
from .tuner.tuner import Tuner, mode_of
from .types import NDArray

if TYPE_CHECKING:
    from .models.run import ModelRun

DEFAULT_TIMEOUT_S = 300.0

Placements = Mapping[Tensor | str, str] | Mapping[str, str]


@dataclasses.dataclass(eq=False)
class _Entry:
    """A compiled graph and the runs that were handed out for it."""

    compiled: Compiled
    runs: list[Run] = dataclasses.field(default_factory=list)


class Scheduler:
    """Devices in order of priority, the CPU always last, and the graphs compiled for them.

    devices: names as `vksched devices` prints them ("vulkan:0", "vulkan:<uuid prefix>", "cpu"), or
        entries of vs.devices() or Device objects; None stands for every hardware Vulkan device. A
        device given twice, by one name or by two, is opened twice: two logical devices.
    policy: "priority", or "auto", which for now is the same.
    copies: how many runs of a graph may be under way at once, each with memory of its own; "auto"
        gives two when a graph spans several devices, else one.
        Where the model leaves room for fewer there are fewer, and `plan.explain()` says so.
    timeout_s: how long a run may wait for one submission before its device counts as failed.
    trace: a sink for the events of what happens, such as vs.Recorder(), a list of sinks, or a
        vs.Trace, which has a clock of its own; `Recorder.save` writes them for Perfetto.
    sync: what a device is given at once: "split", all of a split; "level", nodes that do not depend
        on each other; "op", one node; with the latter two the host waits for each submission before
        the next. For all GPUs, or a mapping of device names, the CPU's too, to these.
    offload: whether an op may run on a GPU while its weights stay in host memory, streamed in for
        each run, where its arithmetic pays for that.
    on_fault: "replay" carries out a run that a device failed without that device, with a warning,
        and leaves it out of all later plans (`quarantined`); "raise" gives the error to the caller,
        as measurements want it, and refuses to run or compile what would need another plan then.
    optimize: whether graphs are rewritten to take less work before they are planned; not so either
        where the variable VKSCHED_OPTIMIZE is 0.
    tune: which of the variants of a kernel runs a call. "auto": the one that `vksched tune` or an
        earlier program found to be the fastest there; on devices that are hardware, calls that
        nobody has measured are measured when they are compiled, for at most 3 s in all. True
        measures whatever is missing, on CPU drivers too; a number does so for at most so many
        seconds in all. False: the best guess, and nothing is read or measured.
    """

    def __init__(
        self,
        devices: Sequence[str | Device | probe.DeviceInfo] | None = None,
        policy: str = "auto",
        copies: int | str = "auto",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        trace: Trace | Sink | Sequence[Sink] | None = None,
        sync: str | Mapping[str, str] = "split",
        offload: bool = True,
        on_fault: str = "replay",
        optimize: bool = True,
        tune: str | bool | float = "auto",
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
        self._tuner = Tuner(mode_of(tune), Store())
        self.trace = as_trace(trace)
        self._policy = "priority" if policy == "auto" else policy
        self._copies = copies
        self._timeout_s = timeout_s
        self._entries: dict[object, _Entry] = {}
        """Compiled graphs that a request may meet again."""
        self._compiled: list[Compiled] = []
        """Those that are not closed yet."""
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._preparing = threading.RLock()
        """Held from planning with the memory that is free until that memory is taken."""
        self._closing = False
        self._closed = False
        self._told: set[str] = set()
        self._models: weakref.WeakSet[ModelRun] = weakref.WeakSet()
        self._owner = Owner()
        self._opened = DeviceSet()
        self._devices = self._opened.devices
        self._offload = bool(offload)
        self._optimize = bool(optimize) and is_on("VKSCHED_OPTIMIZE", True)
        self._sync: dict[str, str] = {}
        self._watchdog = Watchdog(self.trace)
        self._states = StateTable(lambda: self._devices)
        try:
            self._opened.open(devices)
            self._sync = self._opened.check_sync(sync)
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
        spec, sync = self._watchdog.correct(device.spec), self._sync.get(device.name, "split")
        spec = self._tuner.tuned(spec)
        least = spec.offload_flops_per_byte if self._offload else math.inf
        return dataclasses.replace(spec, sync=sync, offload_flops_per_byte=least)

    @overload
    def compile(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        updates: Updates | None = None,
        observe: Observe | None = None,
    ) -> Run: ...

    @overload
    def compile(
        self,
        outputs: ImportedModel,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        limit: int = 16,
    ) -> ModelRun: ...

    def compile(
        self,
        outputs: Outputs | ImportedModel,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        updates: Updates | None = None,
        observe: Observe | None = None,
        limit: int = 16,
    ) -> Run | ModelRun:
        """Plans, allocates, uploads and records once. The same graph, placement and observed values
        again are the same compiled graph, with nothing planned or allocated.

        outputs: one Tensor, a sequence of them or a dict of names to them; a run returns an array,
        a tuple of arrays or a dict of names to arrays. Or a model of `vs.load`: then a run returns
        a dict, and each set of shapes is compiled at its first call; `limit` of them are kept.
        placement: tensors or name patterns (as in fnmatch) to device names; it never changes the
        math. A tensor wins over patterns, a later pattern over an earlier one. A weight pulls the
        ops that read it; what cannot be kept is noted in `plan.explain()`.
        updates: states (`vs.state`) to their next values, which each run puts in their places once
        all else of it is done: a run that fails has changed none of them.
        observe: tensors or name patterns to functions, called with name and value as soon as the
        value is there, on the thread of the run; what returns False stops the run, which raises
        RunCancelled. What comes after such a value waits for the function. A run that a fault
        repeats shows its values again.
        """
        self._owner.require("the scheduler")
        if isinstance(outputs, ImportedModel):
            return self._compile_model(outputs, placement, progress, limit, updates or observe)
        with self._lock:
            request = self._request(outputs, placement, updates, observe, progress)
            key = request.key()
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(self._make(self._less(request), progress))
                self._compiled.append(entry.compiled)
            run = Run(
                entry.compiled,
                make_packer(outputs, request.graph),
                request.of_graph(entry.compiled.plan.graph).observers,
                lambda closed: self._forget(closed, key, entry),
            )
            entry.runs.append(run)
        try:
            warn_of_fallbacks(run.plan, self._told)
        except BaseException:  # where warnings are errors
            run.close()
            raise
        return run

    def _compile_model(
        self,
        outputs: ImportedModel,
        placement: Placements | None,
        progress: Progress | None,
        limit: int,
        more: object,
    ) -> ModelRun:
        """Returns what compiles a model for the shapes of its calls; now where all are fixed."""
        from .importers.onnx.model import Model  # needs the onnx package, which is an extra
        from .models.run import ModelRun

        assert isinstance(outputs, Model)
        if more:
            raise GraphError("[compile] expected a model without updates and observe")

        def compile(outputs: Mapping[str, Tensor], chosen: Placements) -> Run:
            return self.compile(outputs, chosen, progress)

        told = self._told if len(self._devices) > 1 else None
        run = ModelRun(outputs, compile, placement or {}, limit, self.trace, told)
        with self._lock:
            self._models.add(run)
        if outputs.is_static:
            run.prepare()
        return run

    def reserve(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        *,
        updates: Updates | None = None,
        observe: Observe | None = None,
    ) -> Plan:
        """Returns the plan that `compile` would carry out now: where everything would run, and what
        it would take on each device. Nothing is allocated.
        """
        self._owner.require("the scheduler")
        with self._lock:
            request = self._less(self._request(outputs, placement, updates, observe))
        return self._plan(request, self.machine, small=False)

    def function(
        self,
        build: Build,
        *,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        placement: Mapping[str | Tensor, str] | None = None,
        limit: int = 16,
    ) -> Function:
        """Returns what runs a graph on inputs of any shape, compiled at the first call of each.

        build: called once per shape with one Tensor per input, by name; returns outputs, or a pair
        of these and a dict of updates of states. Weights and states belong outside of it.
        bounds: of integer inputs, as in `vs.input`. limit: how many shapes are kept.
        """

        def compile(outputs: Outputs, updates: Updates | None) -> Run:
            return self.compile(outputs, placement, updates=updates)

        return Function(build, compile, bounds or {}, limit)

    def read(self, state: Tensor) -> NDArray:
        """Returns a state's value as the last run left it; waits for a run that uses states.

        Raises:
            StateLost: it was on a device that failed, and there was no copy.
        """
        self._owner.require("the scheduler")
        return self._states.read(state)

    def write(self, state: Tensor, value: object) -> None:
        """Gives a state a value; waits for a run that uses states."""
        self._owner.require("the scheduler")
        self._states.write(state, value)

    def drop(self, state: Tensor) -> None:
        """Frees a state that no compiled graph uses; used again, it starts with its first value."""
        self._owner.require("the scheduler")
        self._states.drop(state)

    def synchronize(self) -> None:
        """Waits until every run submitted so far is done, or has failed; its future tells which."""
        self._owner.require("the scheduler")
        with self._lock:
            models = list(self._models)
        for model in models:
            model.synchronize()
        with self._lock:
            compiled = list(self._compiled)
        for each in compiled:
            each.synchronize()

    def close(self) -> None:
        """Waits for runs under way and accepted ones, then frees graphs, states and devices; safe
        to call twice. What cannot be freed, as a device does not answer, is a warning. In a forked
        child it does nothing: all is the parent's.
        """
        if self._owner.forked:
            return
        with self._lock:
            for each in self._compiled:
                each.require_outside("close")
            models = list(self._models)
        for model in models:
            model.close()  # their runs may still have stages to compile
        with self._lock:
            compiled = list(self._compiled)
            for each in compiled:
                each.require_outside("close")
            self._closing = True
        for each in compiled:
            each.close()  # for another caller: until the first one's ends, or at once in a callback
        with self._lock:
            if self._closed or not all(each.closed for each in compiled):
                return  # who closes the last one goes on from here
            self._states.close()
            self._opened.close()
            self._closed = True

    def _forget(self, run: Run, key: object, entry: _Entry) -> None:
        """Closes a compiled graph with the last of its runs."""
        if self._owner.forked:
            return
        with self._lock:
            if run in entry.runs:
                entry.runs.remove(run)
            last = not entry.runs
            if last and self._entries.get(key) is entry:
                del self._entries[key]
        if last:
            entry.compiled.close()
            with self._lock:
                if entry.compiled in self._compiled:
                    self._compiled.remove(entry.compiled)

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

    def _request(
        self,
        outputs: Outputs,
        placement: Placements | None,
        updates: Updates | None,
        observe: Observe | None,
        progress: object = None,
    ) -> Request:
        """Returns what is to be planned, checked."""
        if isinstance(placement, Tensor) or isinstance(progress, Tensor):
            raise GraphError(
                "[compile] expected one output, a sequence or a dict, got several; try "
                "compile([a, b])"
            )
        if self._closing:
            raise DeviceError("[compile] the scheduler is closed; make a new one")
        graph, ids = build_graph(outputs, updates)
        overrides = self._overrides(placement or {}, ids)
        return Request(graph, tuple(overrides), find_observers(graph, ids, observe or {}))

    def _less(self, request: Request) -> Request:
        """Returns a request that takes less work, where that is wanted."""
        return request.optimized(self.machine) if self._optimize else request

    def _make(self, request: Request, progress: Progress | None) -> Compiled:
        tuned = False  # of a generation that follows a fault the runs wait already

        def build(left_out: Mapping[str, str], small: bool, progress: Progress | None) -> Executor:
            nonlocal tuned
            with self._preparing:
                self._require_reach(request.graph, left_out)
                if not tuned:
                    devices = [d for d in self._devices if d.name not in left_out]
                    wanted = partial(self._plan, request, self._machine(left_out), small)
                    self._tuner.measure_graph(request.graph, devices, wanted, self.trace)
                    tuned = True
                plan = self._plan(request, self._machine(left_out), small)
                self._states.place(plan, self._devices)
                try:
                    return Executor(
                        plan, self._devices, self.trace, self._timeout_s, progress, self._numbers
                    )
                except BaseException:
                    self._states.release(plan)
                    raise

        return Compiled(build, self._quarantine, self._states, self.trace, progress, self._watchdog)

    def _require_reach(self, graph: Graph, left_out: Mapping[str, str]) -> None:
        """Raises where a state lives on a device that works, but has no memory for this graph."""
        for device in self._devices:
            if device.name not in left_out:
                continue
            for node_id in graph.initial:
                if device.states.holds(graph.keys[node_id]):
                    raise OutOfMemory(
                        f"[compile] expected memory on {device.name}, where the state "
                        f"{graph.nodes[node_id].name!r} lives, got none: {left_out[device.name]}; "
                        "try closing other graphs"
                    )

    def _plan(self, request: Request, machine: Machine, small: bool) -> Plan:
        """small: with one copy, as an allocation failed."""
        graph = request.graph
        resident = {
            index: frozenset(n for n, key in graph.keys.items() if device.holds(key))
            for index, device in enumerate(self._devices)
        }
        plan = plan_graph(
            graph,
            machine,
            policy=self._policy,
            overrides=request.overrides,
            copies=1 if small else self._copies,
            resident=resident,
            observed=request.observers.keys(),
        )
        if not small:
            return plan
        note = "copies: 1 made, as a device ran out of memory"
        return dataclasses.replace(plan, notes=(*plan.notes, note))

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
            out.append((target, self._opened.resolve(device)))
        return out
