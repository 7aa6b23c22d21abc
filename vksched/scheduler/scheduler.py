"""Scheduler: opens devices, compiles graphs for them, and closes both."""

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
from ..common.fork_guard import Owner, ProcessBound
from ..engine.compile_options import CompileOptions, Observe, Placements, split_options
from ..engine.device_set import DeviceSet
from ..engine.executable import CompiledGraph
from ..engine.faults import Quarantine
from ..engine.function import Build, Function
from ..engine.graph_cache import DeferredGraph
from ..engine.graph_registry import GraphRegistry
from ..engine.membership import Membership
from ..engine.plan_builder import PlanBuilder, Settings, check_settings, check_switches
from ..engine.request_precision import Precision, check_precision
from ..engine.state_table import StateTable
from ..importers.base import ImportedModel
from ..ir.build_graph import Outputs, Updates
from ..ir.precision import SINGLE
from ..ir.tensor import Tensor
from ..monitor.start import watch
from ..plan.plan import Plan
from ..planner.planner import check_objective
from ..runtime.device import Device
from ..runtime.executors.slowdown_tracker import SlowdownTracker
from ..runtime.vulkan import device_probe
from ..topology.topology import Topology
from ..trace import Sink, Trace, as_trace, with_tape, write_tape
from ..tuning.autotuner import Tuner
from ..tuning.calibrator import Calibrator
from ..tuning.first_use import FirstUse
from ..tuning.measurement import mode_of
from .compile_model import chat_of, run_of_model

if TYPE_CHECKING:
    from ..cluster.cluster import Cluster
    from ..cluster.connections import ClusterConnections
    from ..engine.apply_config import ConfigApplier
    from ..generation.chat import Chat
    from ..importers.gguf.model import LanguageModel
    from ..importers.onnx.model import Model
    from ..models.compiled_model import CompiledModel
    from ..parallel.config.config_types import Config

DEFAULT_TIMEOUT_S = 300.0


class _Handle:
    """An object that is not copied: the deep copy of what refers to it refers to it, too."""

    def __deepcopy__(self, memo: object) -> _Handle:
        return self


class Scheduler(_Handle, ProcessBound):
    """Devices in order of priority, the CPU always last, and the graphs compiled for them.

    Parameters
    ----------
    devices
        Names as in `vksched devices` ("vulkan:0", "vulkan:<uuid prefix>", "cpu"), entries of
        `vs.devices()` or Device objects; None selects all hardware Vulkan devices. A device named
        twice is opened as two logical devices.
    policy
        "auto" uses the plan with the best simulated objective, on one or several devices; the CPU
        competes if it is named or no device is. "priority" fills devices in the given order.
        "earliest-finish" and "work-stealing" schedule dynamically in each run, without states and
        observers.
    objective
        The objective of "auto": "latency", "throughput", "memory" (the maximum over devices),
        "energy", or weights like {"latency": 1, "energy": 0.5}; see docs/guides/plans.md.
    copies
        The maximum number of runs in flight, each with its own memory. "auto" uses two if a graph
        spans several devices, else one; for throughput as many as help. Fewer are used if memory is
        short.
    timeout_s
        The time limit of one submission before its device counts as failed.
    trace
        A sink of events such as `vs.Tape()`, a list of sinks, or a `vs.Trace`; see
        docs/guides/traces.md. VKSCHED_TRACE names a file for the tape of all schedulers.
    submit_granularity
        The nodes of one submission: "split", "level" (independent nodes) or "op"; for all GPUs, or
        by device name, including the CPU. With the latter two the host waits after each one.
    offload
        Allow ops on a GPU to stream weights from host memory if their arithmetic intensity pays.
    on_device_failure
        "retry" repeats a run without the failed device, with a warning, and excludes it from later
        plans (`failed_devices`). "raise" raises the error, also where another plan would be needed.
    optimize
        Run graph passes before planning; VKSCHED_OPTIMIZE=0 disables them, too.
    tune
        "auto" uses cached measurements, and measures kernel variants on hardware for at most 3 s
        and costs once for 0.5 s per device. True or seconds: measure all that is missing. False:
        estimates.
    config
        A YAML file or a dict with the devices, shards and pipeline order of signals (`vs.signal`);
        see docs/guides/sharding-and-pipelines.md.
    precision
        The mode of matmuls, convolutions and attention: "float32", "mixed", "float16", "bfloat16"
        or "int8"; None: "float32", language models by device. See docs/guides/precision-modes.md.
    monitor
        Allow `vksched top` to connect; None: if VKSCHED_MONITOR is 1.
    cluster
        Other hosts, whose devices are named "node1/vulkan:0": a `vs.Cluster`, or "auto" for this
        host's Ray cluster; see docs/guides/distributed-execution.md.
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
        precision: str | None = None,
        cluster: Cluster | str | None = None,
    ) -> None:
        check_settings(copies, timeout_s, on_device_failure, policy, cluster is not None)
        check_switches(offload=offload, optimize=optimize, monitor=monitor or False)
        goal, mode = check_objective(objective, policy, "Scheduler"), mode_of(tune)
        self.precision = None if precision is None else check_precision(precision, "Scheduler")
        self.policy, parsed = policy, None if config is None else _read(config)
        self.trace = with_tape(as_trace(trace))
        self._lock, self._closed = threading.RLock(), False
        self._models: weakref.WeakSet[CompiledModel] = weakref.WeakSet()
        self._owner, self._opened = Owner(), DeviceSet()
        self._states = StateTable(lambda: self._opened.devices)
        try:
            hosts = None if cluster is None else _join(cluster, self.trace)
            self._opened.open(devices, hosts)
            self.with_cpu = self._opened.with_cpu  # the CPU competes if it is named or no device is
            settings = Settings(
                policy=policy,
                objective=goal,
                copies=copies,
                timeout_s=timeout_s,
                offload=bool(offload),
                optimize=bool(optimize) and is_on("VKSCHED_OPTIMIZE", True),
                submit_granularity=self._opened.check_granularity(submit_granularity),
                precision=self.precision or SINGLE,
            )
            names = [d.name for d in self._opened.devices[:-1]]
            self._quarantine = Quarantine(names, on_device_failure)
            tools = Tuner(mode), FirstUse(mode, Calibrator(mode))
            own = self._opened, settings, self._quarantine, self._states
            self._preparing = PlanBuilder(*own, *tools, SlowdownTracker(self.trace), self.trace)
            configured = _configuring(parsed, self._preparing, self._states, policy)
            self.graphs = GraphRegistry(self._preparing, configured)
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
        """The failed devices, which are no longer used: name to reason."""
        return MappingProxyType(dict(self._quarantine.reasons))

    @property
    def topology(self) -> Topology:
        """The current topology of the devices."""
        return self._preparing.topology()

    @overload
    def compile(
        self,
        outputs: Outputs | DeferredGraph,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        updates: Updates | None = None,
        observe: Observe | None = None,
        precision: Precision | None = None,
        ahead: bool = False,
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
        cache_type: str | None = None,
        precision: str | None = None,
    ) -> Chat: ...

    def compile(
        self,
        outputs: Outputs | DeferredGraph | ImportedModel,
        placement: Placements | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> CompiledGraph | CompiledModel | Chat:
        """Compile a graph or a model: plan, allocate, upload and record once. Calls with equal
        graphs, placements and observed values share one compiled graph.

        Parameters
        ----------
        outputs
            A Tensor, a sequence or a dict of Tensors; a run returns arrays in that structure. Or a
            model of `vs.load`: an ONNX model is compiled for each set of shapes at its first call,
            with at most `limit` cached; a language model becomes a `vs.Chat`, with `ctx`,
            `cache_type` and `precision`.
        placement
            Tensors or name patterns (fnmatch) to device names. A tensor wins over patterns, a later
            pattern over an earlier one. Ops follow their placed weights; exceptions are in
            `plan.explain()`.
        updates
            States (`vs.state`) to their next values, which a run stores at its end; a failed run
            changes no state.
        observe
            Tensors or name patterns to callbacks, called with name and value on the thread of the
            run, which waits for them; again if the run is retried. One that returns False stops the
            run with RunCancelled.
        precision
            A precision mode, or tensors or name patterns to modes.
        ahead
            True prepares for `CompiledGraph.run_ahead`, which takes memory for two runs.
        """
        self._owner.require("the scheduler")
        own, of_model = split_options(outputs, placement, progress, options)
        if not isinstance(outputs, ImportedModel):
            return self.graphs.compile(outputs, own)
        if outputs.format == "gguf":
            return chat_of(self, outputs, own, **of_model)
        with self._lock:
            self._models.add(run := run_of_model(outputs, self.graphs, own, **of_model))
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
        ahead: bool = False,
    ) -> Plan:
        """Return the plan that `compile` would execute now; nothing is allocated."""
        own = CompileOptions(placement, None, updates, observe, precision, ahead)
        return self.graphs.reserve(outputs, own)

    def function(
        self,
        build: Build,
        *,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        placement: Mapping[str | Tensor, str] | None = None,
        limit: int = 16,
        precision: Precision | None = None,
    ) -> Function:
        """Return a `Function`, which compiles a graph for each set of input shapes when needed."""
        own = CompileOptions(placement, precision=precision)
        return Function(build, self.graphs, own, bounds or {}, limit)

    def read(self, state: Tensor) -> NDArray:
        """Return a state's value after the last run; raise StateLost if its device failed without a
        backup.
        """
        self._require_open("read")
        return self._states.read(state)

    def write(self, state: Tensor, value: object) -> None:
        """Set the value of a state; wait for runs with states."""
        self._require_open("write")
        self._states.write(state, value)

    def delete_state(self, state: Tensor) -> None:
        """Free a state that no compiled graph uses; its next use starts with the initial value."""
        self._require_open("delete_state")
        self._states.delete_state(state)

    def _require_open(self, what: str) -> None:
        self._owner.require("the scheduler")
        if self._closed:
            why = "expected an open scheduler, got a closed one"
            raise DeviceError(f"[{what}] {why}; try to {what} inside its `with`")

    def restore_device(self, name: str) -> None:
        """Open a failed device again, for example "vulkan:0", without its former states, or use a
        host of the cluster again. Raise DeviceError if it cannot be opened or reached.
        """
        self._require_open("restore_device")
        self._membership.restore_device(name)

    def synchronize(self) -> None:
        """Wait until all submitted runs have finished or failed; their futures hold the results."""
        self._owner.require("the scheduler")
        with self._lock:
            models = list(self._models)
        for model in models:
            model.synchronize()
        self.graphs.synchronize()

    def close(self) -> None:
        """Wait for accepted runs, then free graphs, states and devices; idempotent. Resources of a
        device that does not respond cause a warning. A forked child does nothing.
        """
        if self._owner.forked:
            return
        self.graphs.require_outside("close")
        self._unwatch()
        with self._lock:
            models = list(self._models)
        for model in models:
            model.close()  # their runs may still have segments to compile
        if not self.graphs.close():
            return  # the thread that closes the last one continues
        with self._lock:
            if self._closed:
                return
            self._membership.close()
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
    parsed: Config | None, preparing: PlanBuilder, states: StateTable, policy: str
) -> ConfigApplier | None:
    if parsed is None:
        return None
    from ..engine.apply_config import ConfigApplier  # imported only with a config

    about = preparing.topology, policy, preparing.opened.with_cpu
    return ConfigApplier(parsed, states.locations, *about)


def _join(cluster: Cluster | str, trace: Trace) -> ClusterConnections:
    from ..cluster.from_argument import as_cluster  # imported only with a cluster

    return as_cluster(cluster).join(trace.clock)
