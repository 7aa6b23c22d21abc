"""Calibrator: measures and caches the costs of a scheduler's devices.

    compile --first_use.py------> overheads, links, calls --.
    runs ----learned_costs.py---> samples, paces -----------+--> this scheduler <---> disk
                                                                       |
    next plans <--------------DeviceSpec.costs, Topology.links---------'

It follows the tuning mode (measurement.py). Errors here do not break a compile, except for a device
failure, because the device would fail the run, too. Examples: tests/tuning/test_calibrator.py.
"""

from __future__ import annotations

import datetime
import platform
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

from ..common.cpu_count import usable_cores
from ..common.errors import DeviceError, DeviceTimeout, OutOfMemory, VkschedError
from ..plan.costs.node_cost import COPIES
from ..runtime.device import Device
from ..topology.device_spec import DeviceSpec
from ..topology.links import Link
from ..trace import Clock
from .benchmarker import DeviceBenchmarker
from .calibrate_device import FIRST_STEPS, calibrate
from .calibration_samples import CalibrationSample
from .calibration_types import Calibration, Overheads, Sample, speeds_of, through
from .cost_cache import CostCache
from .device_cache import Identity
from .measurement import Measurement, Mode, Tell


def cost_cache_key(spec: DeviceSpec) -> Identity | None:
    """Return the cache key of a device's costs, or None if they are not cached. The key of a
    software device includes the number of cores that it may use.
    """
    if not spec.driver or spec.kind == "null":
        return None
    label = f"{spec.label} {platform.machine()} {usable_cores()}"
    if spec.kind == "cpu":
        return Identity("", spec.driver, label)
    label = label if spec.limits.software else spec.label
    return Identity(spec.memory_node, spec.driver, label, spec.limits.kernel_text())


_UNCACHED: dict[tuple[Path | None, Identity], Calibration] = {}
"""Measurements of this process that cannot be cached on disk, for its next schedulers."""


class Calibrator:
    """Calibrations by device, cached and measured. Thread-safe."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._cache = CostCache()
        self._known: dict[Identity | str, Calibration] = {}
        self._lock = threading.RLock()

    def known(self, spec: DeviceSpec) -> Calibration:
        """Return the calibration of a device."""
        identity = cost_cache_key(spec)
        key = identity or spec.name
        with self._lock:
            if key not in self._known:
                read = None
                if identity is not None and self._mode.reads:
                    read = self._cache.load(identity)
                    if not read:
                        read = _UNCACHED.get((self._cache.path(identity), identity))
                if read:
                    read = read.recovered(datetime.date.today())
                self._known[key] = read or Calibration(speeds_of(spec))
            found = self._known[key]
        return found if found.speeds == speeds_of(spec) else Calibration(speeds_of(spec))

    def costed(self, spec: DeviceSpec) -> DeviceSpec:
        """Return a device spec with its measured costs; unchanged if there are none."""
        costs = self.known(spec).costs
        return replace(spec, costs=costs) if costs else spec

    def links(
        self, devices: Sequence[Device], specs: Mapping[str, DeviceSpec]
    ) -> tuple[tuple[str, str, Link], ...]:
        """Return the links among devices, the last of which is the host: the link that a device
        reports, else the measured one. specs: those of the devices by name; devices may be closed.
        """
        own = {device.name: device.link for device in devices if device.link is not None}
        return self.links_of([specs[device.name] for device in devices], own)

    def links_of(
        self, specs: Sequence[DeviceSpec], own: Mapping[str, Link] | None = None
    ) -> tuple[tuple[str, str, Link], ...]:
        """Return the links among devices that need not be open. The last device is the host,
        through which all transfers go.

        Parameters
        ----------
        own
            Links by device name that override measured ones.
        """
        host = specs[-1].name
        pairs: list[tuple[str, str, Link]] = []
        into: dict[str, Link] = {}
        out: dict[str, Link] = {}
        for spec in specs[:-1]:
            if own and spec.name in own:
                pairs.append((spec.name, host, own[spec.name]))
                continue
            known = self.known(spec)
            if known.link_in is not None:
                into[spec.name] = known.link_in
                out[spec.name] = known.link_out or known.link_in
                pairs.append((host, spec.name, into[spec.name]))
                pairs.append((spec.name, host, out[spec.name]))
        pairs += [(a, b, through(out[a], into[b])) for a in out for b in into if a != b]
        return tuple(pairs)

    def file(self, spec: DeviceSpec) -> Path | None:
        """Return the file of a device's costs."""
        identity = cost_cache_key(spec)
        return None if identity is None else self._cache.path(identity)

    def forget(self, spec: DeviceSpec) -> bool:
        """Delete the calibration of a device, also on disk; return True if there was one."""
        identity = cost_cache_key(spec)
        with self._lock:
            self._known.pop(identity or spec.name, None)
        return identity is not None and self._cache.clear(identity)

    def measure(
        self,
        device: Device,
        host: Device,
        wanted: Iterable[CalibrationSample],
        budget_s: float,
        tell: Tell,
        clock: Clock,
        again: bool = False,
        quick: bool = False,
        starts: int = 0,
    ) -> Calibration:
        """Measure a device within a budget, cache the result and return it.

        Parameters
        ----------
        again
            True to measure known overheads again; if the user asked for it, also links, and calls
            in several passes.
        quick
            True if the user did not ask, so rough results suffice: of old and new times the shorter
            one counts, and the spent time is recorded.
        starts
            Number of schedulers that have started to measure this device.

        Raises
        ------
        DeviceError
            The device failed; its `device` and `during` are set.
        """
        known, identity = self.known(device.spec), cost_cache_key(device.spec)
        if not quick:
            known = known.at_own_pace()
        lost = self._cache.crashed_variants(identity) if identity else frozenset()
        if not lost.isdisjoint(FIRST_STEPS):
            return known  # even overheads cannot be measured
        calls = [call for call in wanted if call.kind not in lost]
        base = replace(known, overheads=None) if again else known
        if again and not quick:
            base = replace(base, link_in=None, link_out=None)
        file = self.file(device.spec)
        with Measurement(budget_s, tell, file, device.name, "calibrating") as session:
            try:
                benchmarker = open_benchmarker_of(device, host, clock, quick)
                found = calibrate(benchmarker, calls, base, session, thorough=again and not quick)
            except (OutOfMemory, DeviceTimeout):
                # it is busy with other work; a run will report a failure
                return known
            except DeviceError:
                raise
            except VkschedError:
                return known
        if quick:
            found = replace(_merge_quick(known, found), spent_s=session.spent_s, starts=starts)
        else:  # the user asked for this time: it does not count as spent by schedulers
            found = replace(found, spent_s=0.0, starts=0)
        merged = known.plus(found)
        with self._lock:
            self._known[identity or device.name] = merged
        self._keep(device.spec, found, merged)
        return merged

    def teach(self, spec: DeviceSpec, seen: Calibration) -> None:
        """Cache costs that runs showed for later schedulers; this one's speed tracker has them."""
        identity = cost_cache_key(spec)
        if identity is not None and self._mode.reads:
            self._cache.add(identity, seen)

    def _keep(self, spec: DeviceSpec, found: Calibration, merged: Calibration) -> None:
        identity = cost_cache_key(spec)
        if identity is None or not found:
            return
        if not self._cache.add(identity, found):
            _UNCACHED[self._cache.path(identity), identity] = merged


def _merge_quick(known: Calibration, found: Calibration) -> Calibration:
    """Return known costs merged with a quick measurement: of old and new times the shorter ones.
    The pace of runs stays.
    """
    before, now = known.overheads, found.overheads
    if before is None or now is None:
        return found
    overheads = now
    if not known.guessed:
        overheads = Overheads(*map(min, zip(astuple(before), astuple(now), strict=True)))
    old = {sample.place: sample for sample in known.samples}
    samples: list[Sample] = []
    for sample in found.samples:
        if sample.op in COPIES:
            samples.append(sample)
            continue
        times = []
        if sample.place in old:
            times.append(old[sample.place].seconds(before.launch_s))
        if sample is not old.get(sample.place):  # measured now
            times.append(sample.seconds(now.launch_s) / known.pace)
        samples.append(sample.taking(min(times), overheads.launch_s))
    return replace(
        found, overheads=overheads, samples=tuple(samples), pace=known.pace, seen=known.seen
    )


def open_benchmarker_of(
    device: Device, host: Device, clock: Clock, quick: bool = False
) -> DeviceBenchmarker:
    """Return the benchmarker of a device."""
    if device.spec.kind != "vulkan":
        return DeviceBenchmarker(device, host, clock, quick)
    from ..runtime.vulkan.vulkan_device import VulkanDevice  # needs the native modules
    from .vulkan_benchmarker import VulkanBenchmarker

    benchmarker = VulkanBenchmarker if isinstance(device, VulkanDevice) else DeviceBenchmarker
    return benchmarker(device, host, clock, quick)
