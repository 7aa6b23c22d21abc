"""Scheduler: the user's door. Opens devices, compiles graphs for them, closes everything."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from ..common.dtypes import NDArray, Progress
from ..common.env import is_on
from ..common.errors import DeviceError
from ..common.fork_guard import OfProcess, Owner
from ..engine.device_set import DeviceSet
from ..engine.executable import CompiledGraph
from ..engine.faults import Quarantine
from ..engine.function import Build, Function
from ..engine.graph_registry import Graphs
from ..engine.membership import Membership
from ..engine.plan_builder import Preparing, Settings, check_settings, check_switches
from ..engine.request import Observe, Placements, options_for
from ..engine.request_precision import Precision, check_precision
from ..engine.state_table import StateTable
from ..importers.base import ImportedModel
from ..ir.build_graph import Outputs, Updates
from ..ir.tensor import Tensor
from ..monitor.start import watch
from ..plan.plan import Plan
from ..planner.planner import check_objective
from ..runtime.device import Device
from ..runtime.executors.slowdown_tracker import SlowdownTracker
from ..runtime.vulkan import device_probe
from ..topology.topology import Topology
from ..trace import Sink, Trace, as_trace, with_tape, write_tape
from ..tuning.autotuner import Tuner, mode_of
from ..tuning.calibrator import Calibrator
from ..tuning.cost_cache import CostStore
from ..tuning.first_use import FirstUse
from ..tuning.variant_cache import Store
from .compile_model import chat_of, run_of_model

if TYPE_CHECKING:
    from ..cluster.cluster import Cluster
    from ..cluster.connections import ClusterConnections
    from ..engine.apply_config import Configuring
    from ..generation.chat import Chat
    from ..importers.gguf.model import LanguageModel
    from ..importers.onnx.model import Model
    from ..models.compiled_model import CompiledModel
    from ..parallel.config.config_types import Config

DEFAULT_TIMEOUT_S = 300.0


class Scheduler(OfProcess):
    """Devices in order of priority, the CPU always last, and the graphs compiled for them.

    devices: names as `vksched devices` prints them ("vulkan:0", "vulkan:<uuid prefix>", "cpu"), or
        entries of vs.devices() or Device objects; None stands for every hardware Vulkan device. A
        device given twice, by one name or by two, is opened twice: two logical devices.
    policy: "auto", what a simulated run of the graph finds fastest: one device, or several where
        that pays for what crosses; the CPU competes where it is named or no device is. "priority":
        the devices in the order given, the next one where one is full. "earliest-finish" and
        "work-stealing" decide in each run, for devices whose speed changes: a part of a graph goes
        to the device that would end it first, or waits until an idle one takes it. States and
        observers need another.
    objective: what "auto" makes small: "latency" of one run, "throughput", the time between two
        results of a stream, "memory", the bytes on the device that holds most, "energy" of one run,
        or a mix, as {"latency": 1, "energy": 0.5}; docs/guides/plans.md tells what each one is.
    copies: how many runs of a graph may be under way at once, each with memory of its own; "auto"
        gives two when a graph spans several devices, else one; for throughput as many as make a
        stream faster; fewer where there is no room, as `plan.explain()` says then.
    timeout_s: how long a run may wait for one submission before its device counts as failed.
    trace: a sink for the events of what happens, such as vs.Tape(), which keeps them, a list of
        sinks, or a vs.Trace, which has a clock of its own; docs/guides/traces.md. The variable
        VKSCHED_TRACE names a file that a tape of all schedulers of the program is written to.
    submit_granularity: what a device is given at once: "split", all of a split; "level", nodes that
    do not depend
        on each other; "op", one node; with the latter two the host waits for each submission before
        the next. For all GPUs, or a mapping of device names, the CPU's too, to these.
    offload: whether an op may run on a GPU while its weights stay in host memory, streamed in for
        each run, where its arithmetic pays for that.
    on_device_failure: "retry" carries out a run that a device failed without that device, with a
    warning,
        and leaves it out of all later plans (`failed_devices`); "raise" gives the error to the
        caller, as measurements want it, and refuses to run or compile what would need another plan
        then.
    optimize: whether graphs are rewritten to take less work before they are planned; not so either
        where the variable VKSCHED_OPTIMIZE is 0.
    tune: which variants of kernels run calls, and what calls take. "auto": as was measured before;
        variants are measured on hardware, for at most 3 s in all, costs of every device for half a
        second once. True or seconds: whatever is missing is measured, on CPU drivers too. False:
        the best guess, and nothing is read, measured or kept.
    config: a YAML file or a dict that says of signals (`vs.signal`) where they run, how they are
        sharded over devices, and in which order; see docs/guides/sharding-and-pipelines.md.
    precision: of products, convolutions and attention: "float32", "mixed", "float16", "bfloat16" or
        "int8"; see docs/guides/precision-modes.md.
    monitor: whether `vksched top` may look on; None: where the variable VKSCHED_MONITOR is 1.
    cluster: other hosts whose devices are used, as "node1/vulkan:0": a `vs.Cluster`, or "auto" for
        the Ray cluster of this host; see docs/guides/distributed-execution.md.
    """

    def __init__(
        self,
        devices: Sequence[str | Device | device_probe.DeviceInfo] | None = None,
        policy: str = "auto",
        copies: int | str = "auto",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        trace: Trace | Sink | Sequence[Sink] | None = None,
        submit_granularity: str | Mapping[str, str] = "split",
        offload: bool = True,
        on_device_failure: str = "retry",
        optimize: bool = True,
        tune: str | bool | float = "auto",
        objective: str | Mapping[str, float] = "latency",
        config: str | PathLike[str] | Mapping[str, Any] | None = None,
        monitor: bool | None = None,
        precision: str = "float32",
        cluster: Cluster | str | None = None,
    ) -> None:
        check_settings(copies, timeout_s, on_device_failure, policy, cluster is not None)
        check_switches(offload=offload, optimize=optimize, monitor=monitor or False)
        goal, mode = check_objective(objective, policy, "Scheduler"), mode_of(tune)
        self.policy, parsed = policy, None if config is None else _read(config)
        self.trace = with_tape(as_trace(trace))
        self._lock = threading.RLock()
        self._closed = False
        self._models: weakref.WeakSet[CompiledModel] = weakref.WeakSet()
        self._owner = Owner()
        self._opened = DeviceSet()
        self._states = StateTable(lambda: self._opened.devices)
        try:
            hosts = None if cluster is None else _join(cluster, self.trace)
            self._opened.open(devices, hosts)
            self.with_cpu = self._opened.with_cpu  # the CPU competes: it is named, or nothing is
            settings = Settings(
                policy=policy,
                objective=goal,
                copies=copies,
                timeout_s=timeout_s,
                offload=bool(offload),
                optimize=bool(optimize) and is_on("VKSCHED_OPTIMIZE", True),
                submit_granularity=self._opened.check_granularity(submit_granularity),
                precision=check_precision(precision, "Scheduler"),
            )
            names = [d.name for d in self._opened.devices[:-1]]
            self._quarantine = Quarantine(names, on_device_failure)
            tools = Tuner(mode, Store()), FirstUse(mode, Calibrator(mode, CostStore()))
            self._preparing = Preparing(
                *(self._opened, settings, self._quarantine, self._states),
                *(*tools, SlowdownTracker(self.trace), self.trace),
            )
            configured = _configuring(parsed, self._preparing, self._states, policy)
            self.graphs = Graphs(self._preparing, configured)
            self._membership = Membership(self._preparing, self.graphs)
            self._unwatch = watch(self.graphs, policy, monitor)
            self._keep = weakref.finalize(self, self._preparing.lessons.keep)
        except BaseException:
            self._opened.close()
            raise

    @property
    def devices(self) -> tuple[Device, ...]:
        """The open devices, in order of priority."""
        return tuple(self._opened.devices)

    @property
    def failed_devices(self) -> Mapping[str, str]:
        """The devices that failed and are not used any more: name to reason."""
        return MappingProxyType(dict(self._quarantine.reasons))

    @property
    def topology(self) -> Topology:
        """What the planner knows of the devices now."""
        return self._preparing.topology()

    @overload
    def compile(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        updates: Updates | None = None,
        observe: Observe | None = None,
        precision: Precision | None = None,
    ) -> CompiledGraph: ...

    @overload
    def compile(
        self,
        outputs: Model,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        limit: int = 16,
        precision: Precision | None = None,
    ) -> CompiledModel: ...

    @overload
    def compile(
        self,
        outputs: LanguageModel,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        ctx: int | None = None,
        cache_type: str = "f32",
        precision: str | None = None,
    ) -> Chat: ...

    def compile(
        self,
        outputs: Outputs | ImportedModel,
        placement: Placements | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> CompiledGraph | CompiledModel | Chat:
        """Plans, allocates, uploads and records once. The same graph, placement and observed values
        again are the same compiled graph, with nothing planned or allocated.

        outputs: one Tensor, a sequence of them or a dict of names to them; a run returns an array,
        a tuple of arrays or a dict of names to arrays. Or a model of `vs.load`. Of an ONNX model a
        run returns a dict, and each set of shapes is compiled at its first call; `limit` of them
        are kept. A language model becomes a `vs.Chat`, with ctx, cache_type and precision.
        placement: tensors or name patterns (as in fnmatch) to device names; it never changes the
        math. A tensor wins over patterns, a later pattern over an earlier one. A weight pulls the
        ops that read it; what cannot be kept is noted in `plan.explain()`.
        updates: states (`vs.state`) to their next values, which each run puts in their places once
        all else of it is done: a run that fails has changed none of them.
        observe: tensors or name patterns to functions, called with name and value as soon as the
        value is there, on the thread of the run; what returns False stops the run, which raises
        RunCancelled. What comes after such a value waits for the function. A run that a fault
        repeats shows its values again.
        precision: a word, as for the scheduler, or tensors or name patterns to words.
        """
        self._owner.require("the scheduler")
        format_options = options_for(outputs, options)
        if not isinstance(outputs, ImportedModel):
            return self.graphs.compile(outputs, placement, progress, **format_options)
        if outputs.format == "gguf":
            return chat_of(self, outputs, placement, progress, **format_options)
        run = run_of_model(outputs, self.graphs, placement or {}, progress, **format_options)
        with self._lock:
            self._models.add(run)
        if run.model.is_static:
            run.prepare()
        return run

    def reserve(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        *,
        updates: Updates | None = None,
        observe: Observe | None = None,
        precision: Precision | None = None,
    ) -> Plan:
        """Return the plan that `compile` would carry out now: where everything would run, and what
        it would take on each device. Nothing is allocated.
        """
        return self.graphs.reserve(outputs, placement, updates, observe, precision)

    def function(
        self,
        build: Build,
        *,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        placement: Mapping[str | Tensor, str] | None = None,
        limit: int = 16,
        precision: Precision | None = None,
    ) -> Function:
        """Return a function that compiles a graph for each set of input shapes at its first call.

        Parameters
        ----------
        build
            Called once per set of shapes with one Tensor per input, by name. It returns outputs, or
            a pair of outputs and a dict of state updates. Weights and states belong outside of it.
        bounds
            The value ranges of integer inputs, as in `vs.input`.
        placement, precision
            See `compile`.
        limit
            The maximum number of cached sets of shapes.
        """
        return Function(build, self.graphs, placement, bounds or {}, limit, precision)

    def read(self, state: Tensor) -> NDArray:
        """Return a state's value as the last run left it; waits for a run that uses states.

        Raises:
            StateLost: it was on a device that failed, and there was no copy. DeviceError: the
                scheduler is closed.
        """
        self._require_open("read")
        return self._states.read(state)

    def write(self, state: Tensor, value: object) -> None:
        """Give a state a value; waits for a run that uses states."""
        self._require_open("write")
        self._states.write(state, value)

    def delete_state(self, state: Tensor) -> None:
        """Free a state that no compiled graph uses; used again, it starts with its first value."""
        self._require_open("delete_state")
        self._states.delete_state(state)

    def _require_open(self, what: str) -> None:
        self._owner.require("the scheduler")
        if self._closed:
            why = "expected an open scheduler, got a closed one"
            raise DeviceError(f"[{what}] {why}; try to {what} inside its `with`")

    def restore_device(self, name: str) -> None:
        """Use a computer of the cluster again, or one of its devices, that failed: "node1" or
        "node1/vulkan:0". A computer that was lost and is back comes in by itself after a moment.

        Raises:
            DeviceError: there is none, or it cannot be reached.
        """
        self._require_open("restore_device")
        self._membership.restore_device(name)

    def synchronize(self) -> None:
        """Wait until every run submitted so far is done, or has failed; its future tells which."""
        self._owner.require("the scheduler")
        with self._lock:
            models = list(self._models)
        for model in models:
            model.synchronize()
        self.graphs.synchronize()

    def close(self) -> None:
        """Wait for runs under way and accepted ones, then frees graphs, states and devices; safe
        to call twice. What cannot be freed, as a device does not answer, is a warning. In a forked
        child it does nothing: all is the parent's.
        """
        if self._owner.forked:
            return
        self.graphs.require_outside("close")
        self._unwatch()
        with self._lock:
            models = list(self._models)
        for model in models:
            model.close()  # their runs may still have stages to compile
        if not self.graphs.close():
            return  # who closes the last one goes on from here
        with self._lock:
            if self._closed:
                return
            self._states.close()
            self._opened.close()
            self._closed = True
        self._keep()
        write_tape()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _read(config: str | PathLike[str] | Mapping[str, Any]) -> Config:
    from ..parallel.config.read_config import read_config

    return read_config(config)


def _configuring(
    parsed: Config | None, preparing: Preparing, states: StateTable, policy: str
) -> Configuring | None:
    if parsed is None:
        return None
    from ..engine.apply_config import Configuring  # as for `_read`

    about = preparing.topology, policy, preparing.opened.with_cpu
    return Configuring(parsed, states.locations, *about)


def _join(cluster: Cluster | str, trace: Trace) -> ClusterConnections:
    from ..cluster.from_argument import as_cluster  # without a cluster nothing of it is imported

    return as_cluster(cluster).join(trace.clock)
