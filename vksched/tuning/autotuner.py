"""Autotuner: the fastest kernel variants of a scheduler's devices. It measures missing ones within
a time budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..common.dtypes import NDArray
from ..common.errors import OutOfMemory, UnsupportedOp
from ..ir.graph import Graph
from ..ir.op import Call, get_op
from ..ir.precision import precision_of
from ..ops.lowering.lower import lower
from ..plan.costs.node_cost import work_seconds
from ..plan.plan import Plan
from ..runtime.device import Device
from ..storage.crash_marker import CrashMarker
from ..topology.device_spec import DeviceSpec
from ..topology.tuned_variants import TunedVariants
from ..trace import Event, Trace
from .device_cache import Identity
from .measurement import Measurement, Mode, Tell, is_busy, progress_bar
from .search import (
    LARGEST_ERROR,
    LARGEST_ERROR_OF,
    LONGEST_S,
    Bench,
    MeasurementSkipped,
    search,
)
from .tunable_calls import Tunable, calls_of, planned_calls, shader_hash
from .variant_cache import TuningResult, VariantCache, choices

LOST = "a program ended, or its device was lost, while it was tried"

OpenBench = Callable[[Device, Tunable], AbstractContextManager[Bench]]


def identity_of(spec: DeviceSpec) -> Identity | None:
    """Return the cache key of a device's results; None for a device without kernels."""
    if spec.kind != "vulkan" or not spec.driver:
        return None
    return Identity(spec.memory_node, spec.driver, spec.label, spec.limits.kernel_text())


@dataclass(slots=True)
class _Results:
    """Results of one device. lost: variants that crashed the device, by call key, with the
    reason.
    """

    found: dict[str, TuningResult]
    lost: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    choices: TunedVariants = field(init=False)

    def __post_init__(self) -> None:
        self.choices = choices(self.found.values())


class _MarkedBench:
    """A benchmark that records each variant in the crash marker before it runs."""

    def __init__(self, bench: Bench, marker: CrashMarker, call: Tunable) -> None:
        self._bench, self._crash_marker, self._call = bench, marker, call
        self._variant: str | None = None

    def run(self, variant: str, repeat: int) -> float:
        if variant != self._variant:
            self._crash_marker.begin(self._call.key, variant, shader_hash(self._call.op.name))
            self._variant = variant
        return self._bench.run(variant, repeat)

    def result(self) -> NDArray:
        return self._bench.result()


class Tuner:
    """Results by device, cached and measured. Thread-safe."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._cache = VariantCache()
        self._left_s = mode.budget_s
        self._results: dict[Identity, _Results] = {}
        self._not_measurable: set[tuple[Identity | None, str]] = set()
        """Calls that cannot be compared: too slow or too large."""
        self._lock = threading.RLock()

    def tuned(self, spec: DeviceSpec) -> DeviceSpec:
        """Return a device spec with its tuned variants."""
        identity = identity_of(spec) if self._mode.reads else None
        if identity is None:
            return spec
        found = self._of(identity).choices
        return replace(spec, limits=replace(spec.limits, tuned=found)) if found else spec

    def results(self, spec: DeviceSpec) -> Mapping[str, TuningResult]:
        """Return the results of a device by call key."""
        identity = identity_of(spec)
        return {} if identity is None else dict(self._of(identity).found)

    def file(self, spec: DeviceSpec) -> Path | None:
        """Return the file of a device's results."""
        identity = identity_of(spec)
        return None if identity is None else self._cache.path(identity)

    def forget(self, spec: DeviceSpec) -> bool:
        """Delete the results of a device, also on disk; return True if there were any."""
        identity = identity_of(spec)
        if identity is None:
            return False
        with self._lock:
            self._results.pop(identity, None)
        return self._cache.clear(identity)

    def wants(self, spec: DeviceSpec) -> bool:
        """Return True if calls are to be measured on a device."""
        may = self._mode.software or not spec.limits.software
        return may and self._left_s > 0 and identity_of(spec) is not None

    def missing(self, spec: DeviceSpec, calls: Mapping[str, Tunable]) -> list[Tunable]:
        """Return the measurable calls of a device that have several variants and no results."""
        known, identity, lost = self.results(spec), identity_of(spec), self._lost(spec)
        out = []
        for key, call in calls.items():
            found = known.get(key)
            if (identity, key) in self._not_measurable:
                continue
            names = {*call.names} - lost.get(key, {}).keys()
            if names and (found is None or not names <= {*found.seconds, *found.dropped}):
                out.append(call)
        return out

    def measure(
        self, device: Device, calls: Iterable[Tunable], tell: Tell
    ) -> tuple[TuningResult, ...]:
        """Measure calls on a device within the budget, the longest first, and cache the results.

        Raises
        ------
        DeviceError
            The device failed; its `device` and `during` are set.
        """
        calls = sorted(calls, key=lambda call: -_seconds(device.spec, call))
        results: list[TuningResult] = []
        lost, file = self._lost(device.spec), self.file(device.spec)
        session = Measurement(self._left_s, tell, file, device.name, "tuning")
        try:
            with session:
                for number, call in enumerate(calls):
                    if session.over or is_busy(device):
                        break
                    tell(f"{device.name} {call.op.name}", number, len(calls))
                    session.marker.end()
                    without = lost.get(call.key, {})
                    found = _measure(device, call, without, _open_bench, session)
                    if found is not None:
                        results.append(found)
                    elif not session.over:
                        self._not_measurable.add((identity_of(device.spec), call.key))
        finally:
            with self._lock:
                self._left_s -= session.spent_s
            self._keep(device.spec, results)
        tell(device.name, len(calls), len(calls))
        return tuple(results)

    def measure_graph(
        self, graph: Graph, devices: Iterable[Device], plan: Callable[[], Plan], trace: Trace
    ) -> None:
        """Measure the calls of a graph without results on the devices that would run them.

        Parameters
        ----------
        plan
            Returns the plan; called only if results are missing.

        Raises
        ------
        DeviceError
            The device failed; its `device` and `during` are set.
        """
        wanted: list[tuple[Device, dict[str, Tunable]]] = []
        for device in devices:
            if self.wants(device.spec):
                calls = calls_of(graph, device.spec)
                if self.missing(device.spec, calls):
                    wanted.append((device, calls))
        if not wanted:
            return
        built_plan = plan()
        with progress_bar() as tell:
            for device, _ in wanted:
                here = planned_calls(graph, built_plan, device.spec)
                missing = self.missing(device.spec, here)
                start = trace.clock.now()
                found = self.measure(device, missing, tell)
                fields = {"calls": len(found), "missing": len(missing) - len(found)}
                trace.emit(Event("tune", device.name, start, trace.clock.now(), fields=fields))

    def _keep(self, spec: DeviceSpec, results: Iterable[TuningResult]) -> None:
        results = list(results)
        identity = identity_of(spec)
        if identity is None or not results:
            return
        with self._lock:
            known = self._of(identity)
            found = known.found | {each.key: each for each in results}
            self._results[identity] = _Results(found, known.lost)
        # outside of the lock: another process may hold the file's lock
        self._cache.add(identity, results)

    def _of(self, identity: Identity) -> _Results:
        with self._lock:
            if identity not in self._results:
                read, lost = self._cache.load(identity), self._cache.crashed_variants(identity)
                found = {key: each for key, each in read.items() if _is_current(each)}
                self._results[identity] = _Results(found, _add_reasons(lost))
            return self._results[identity]

    def _lost(self, spec: DeviceSpec) -> Mapping[str, Mapping[str, str]]:
        identity = identity_of(spec)
        return {} if identity is None else self._of(identity).lost


def _add_reasons(lost: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the variants that crashed the device, if their shaders are unchanged, with the
    reason.
    """
    return {
        key: {name: LOST for name, shaders in names.items() if _is_of(key, shaders)}
        for key, names in lost.items()
    }


def _is_current(found: TuningResult) -> bool:
    """Return True if a result belongs to the current shaders."""
    return _is_of(found.key, found.shaders)


def _is_of(key: str, shaders: str) -> bool:
    op = key.partition(" ")[0]
    with suppress(Exception):  # the op may not exist any more
        return get_op(op).kernel is not None and shaders == shader_hash(op)
    return False


def _seconds(spec: DeviceSpec, call: Tunable) -> float:
    """Return the estimated seconds of a call."""
    return work_seconds(spec, call.op.work(call.call.inputs, call.call.output, call.call.attrs))


def _measure(
    device: Device,
    call: Tunable,
    lost: Mapping[str, str],
    open_bench: OpenBench,
    session: Measurement,
) -> TuningResult | None:
    """Return the result of one call, or None if its variants cannot be compared here. lost:
    variants to skip.
    """
    if _seconds(device.spec, call) > LONGEST_S:
        return None  # a submission this long risks the device and hides the differences
    try:
        with open_bench(device, call) as bench:
            names = tuple(name for name in call.names if name not in lost)
            noted = _MarkedBench(bench, session.marker, call)
            error = _largest_error(call.call)
            counters = tuple(_with_counters(call, names))
            found = search(call.key, names, noted, lambda: session.left_s, error, counters)
    except (OutOfMemory, UnsupportedOp, MeasurementSkipped):
        return None
    if found is None:
        return None
    dropped = {**found.dropped, **lost}
    return replace(found, dropped=dropped, shaders=shader_hash(call.op.name))


def _with_counters(call: Tunable, names: Iterable[str]) -> Iterator[str]:
    """Yield the variants of a call whose workgroups count their arrivals."""
    for name in names:
        with suppress(UnsupportedOp):
            if lower(call.op, replace(call.call, variant=name)).counters:
                yield name


def _largest_error(call: Call) -> float:
    """Return the maximum error between results of two variants of a call, for `search`."""
    return LARGEST_ERROR_OF.get(precision_of(call.attrs), LARGEST_ERROR)


def _open_bench(device: Device, call: Tunable) -> AbstractContextManager[Bench]:
    """Return a context manager with the benchmark of a call on a Vulkan device."""
    from ..runtime.vulkan.vulkan_device import VulkanDevice  # needs the native modules
    from .kernel_benchmark import CallBench

    if not isinstance(device, VulkanDevice):
        raise UnsupportedOp(f"[tune] expected a Vulkan device, got {device.name}")
    return CallBench(device, call.op, call.call)
