"""Calibrator: the measured costs of a scheduler's devices; measures what is missing, in a moment.

    compile --costs of a device unknown, hardware--> overheads, links, the graph's dearest calls
                                                                      |
    next plans <--DeviceSpec.costs, Machine.links-- this scheduler <--+--> disk

It does what the tuner's mode says (tuner.py): "auto" measures hardware only, and numpy beside it.
Nothing that goes wrong here breaks a compile, but a device that fails is reported, as it would fail
the run. Examples: tests/tuner/test_calibrator.py.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DeviceError, DeviceTimeout, OutOfMemory, VkschedError
from ..graph import Graph
from ..machine.cores import usable_cores
from ..machine.links import Link
from ..machine.spec import DeviceSpec
from ..runtime.device import Device
from ..trace import Clock, Event, Trace
from .attempts import Attempt
from .calibrate import FIRST_STEPS, Clocked, Tell, calibrate
from .calibration import Calibration, speeds_of, through
from .cost_store import CostStore
from .device_files import Identity
from .rig import SessionRig
from .samples import Wanted, wanted_of
from .tuner import Mode, is_busy

FIRST_USE_S = 0.5
"""What a scheduler spends by itself, in all."""
MOST_S = 5.0
"""What one spends that is told to measure whatever is missing."""

OpenRig = Callable[[Device, Device, Clock], SessionRig]


def kept_as(spec: DeviceSpec) -> Identity | None:
    """Returns what costs of a device are kept under; None for what is not kept."""
    if not spec.driver or spec.kind == "null":
        return None
    if spec.kind == "cpu":
        return Identity("", spec.driver, f"{spec.label} {platform.machine()} {usable_cores()}")
    return Identity(spec.pool, spec.driver, spec.label)


class Calibrator:
    """Calibrations by device, from disk and measured. May be used from any number of threads.

    open_rig: what measures a device; tests give another.
    """

    def __init__(
        self, mode: Mode, store: CostStore | None = None, open_rig: OpenRig | None = None
    ) -> None:
        self._mode = mode
        self._store = store
        self._open_rig = open_rig or open_rig_of
        most_s = MOST_S if mode.software else FIRST_USE_S
        self._left_s = min(mode.budget_s, most_s)
        self._known: dict[Identity | str, Calibration] = {}
        self._given_up: set[tuple[str, str, str, int]] = set()
        self._lock = threading.RLock()

    def known(self, spec: DeviceSpec) -> Calibration:
        """Returns what is known of a device."""
        identity = kept_as(spec)
        key = identity or spec.name
        with self._lock:
            if key not in self._known:
                read = None
                if identity is not None and self._store is not None and self._mode.reads:
                    read = self._store.load(identity)
                self._known[key] = read or Calibration(speeds_of(spec))
            found = self._known[key]
        return found if found.speeds == speeds_of(spec) else Calibration(speeds_of(spec))

    def costed(self, spec: DeviceSpec) -> DeviceSpec:
        """Returns a device with its measured costs; its own where nothing is known."""
        costs = self.known(spec).costs
        return replace(spec, costs=costs) if costs else spec

    def links(self, devices: Sequence[Device]) -> tuple[tuple[str, str, Link], ...]:
        """Returns the links among devices, the last of which is the host: what a device itself
        says of its link, else what was measured.
        """
        own = {device.name: device.link for device in devices if device.link is not None}
        return self.links_of([device.spec for device in devices], own)

    def links_of(
        self, specs: Sequence[DeviceSpec], own: Mapping[str, Link] | None = None
    ) -> tuple[tuple[str, str, Link], ...]:
        """Returns the links among devices that need not be open, the last of which is the host. Two
        devices reach each other through it. own: links by name that are not looked up.
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
        """Returns where the costs of a device are kept."""
        identity = kept_as(spec)
        return None if identity is None or self._store is None else self._store.path(identity)

    def forget(self, spec: DeviceSpec) -> bool:
        """Forgets what is known of a device, on disk too; returns whether there was anything."""
        identity = kept_as(spec)
        with self._lock:
            self._known.pop(identity or spec.name, None)
        return identity is not None and self._store is not None and self._store.clear(identity)

    def measure(
        self,
        device: Device,
        host: Device,
        wanted: Iterable[Wanted],
        budget_s: float,
        tell: Tell,
        clock: Clock,
        again: bool = False,
    ) -> Calibration:
        """Measures a device within a budget; returns what is known of it then, and keeps it.

        again: whether overheads and links are measured though they are known, and calls in several
            passes, as somebody asked for all of this.

        Raises:
            DeviceError: the device failed; its `device` and `during` are set.
        """
        known, budget = self.known(device.spec), Clocked(budget_s)
        lost = self._lost(device.spec)
        if not lost.isdisjoint(FIRST_STEPS):
            return known  # not even these go well here
        calls = [call for call in wanted if call.kind not in lost]
        base = replace(known, overheads=None, link_in=None, link_out=None) if again else known
        attempt, failed = self._attempt(device.spec), False
        try:
            rig = self._open_rig(device, host, clock)
            found = calibrate(rig, calls, base, budget, tell, attempt, thorough=again)
        except (OutOfMemory, DeviceTimeout):  # it works for somebody else; a run will see
            return known
        except DeviceError as error:
            failed = True
            error.device, error.during = device.name, "calibrating"
            raise
        except VkschedError:
            return known
        finally:
            attempt.close(failed)
            with self._lock:
                self._left_s -= budget.spent_s
        merged = known.plus(found)
        with self._lock:
            self._known[kept_as(device.spec) or device.name] = merged
        self._keep(device.spec, found)
        return merged

    def measure_graph(
        self,
        graph: Graph,
        devices: Sequence[Device],
        spec_of: Callable[[Device], DeviceSpec],
        trace: Trace,
    ) -> None:
        """Measures what is missing to plan a graph by cost, the dearest calls first.

        devices: the last one is the host. spec_of: a device as plans see it, tuned. Raises
        DeviceError as `measure`.
        """
        wants = [device for device in devices if self._wants(device.spec, devices)]
        for device in wants:
            calls = self._missing(graph, spec_of(device))
            if (not calls and self.known(device.spec)) or self._left_s <= 0 or is_busy(device):
                continue
            # what is left is shared among the devices to come
            share_s = self._left_s / (len(wants) - wants.index(device))
            start, before = trace.clock.now(), time.monotonic()
            known = len(self.known(device.spec).samples)
            found = self.measure(device, devices[-1], calls, share_s, _silent, trace.clock)
            if time.monotonic() - before < share_s:  # all were tried: some cannot be measured
                self._given_up.update((device.name, *call.place) for call in calls)
            fields = {"calls": len(found.samples) - known}
            trace.emit(Event("calibrate", device.name, start, trace.clock.now(), fields=fields))

    def _wants(self, spec: DeviceSpec, devices: Sequence[Device]) -> bool:
        if self._left_s <= 0 or kept_as(spec) is None:
            return False
        if self._mode.software:
            return True
        if spec.kind == "cpu":  # numpy alone has nothing to be compared with
            return any(_is_hardware(device.spec) for device in devices)
        return _is_hardware(spec)

    def _missing(self, graph: Graph, spec: DeviceSpec) -> list[Wanted]:
        """Returns the calls of a graph whose op, bound and size nobody has measured."""
        known = {sample.place for sample in self.known(spec).samples}
        first: dict[tuple[str, str, int], Wanted] = {}
        for call in sorted(wanted_of(graph, spec), key=lambda call: -call.seconds):
            place = call.place
            if place not in known and (spec.name, *place) not in self._given_up:
                first.setdefault(place, call)
        return list(first.values())

    def _lost(self, spec: DeviceSpec) -> frozenset[tuple[str, str]]:
        identity = kept_as(spec)
        if identity is None or self._store is None:
            return frozenset()
        return self._store.lost(identity)

    def _attempt(self, spec: DeviceSpec) -> Attempt:
        identity = kept_as(spec)
        if identity is None or self._store is None:
            return Attempt(None)
        return self._store.attempt(identity)

    def _keep(self, spec: DeviceSpec, found: Calibration) -> None:
        identity = kept_as(spec)
        if identity is not None and self._store is not None and found:
            self._store.add(identity, found)


def open_rig_of(device: Device, host: Device, clock: Clock) -> SessionRig:
    """Returns what measures a device."""
    if device.spec.kind != "vulkan":
        return SessionRig(device, host, clock)
    from ..runtime.vulkan.device import VulkanDevice  # needs the native modules
    from .rig_vulkan import VulkanRig

    rig = VulkanRig if isinstance(device, VulkanDevice) else SessionRig
    return rig(device, host, clock)


def _is_hardware(spec: DeviceSpec) -> bool:
    return spec.kind == "vulkan" and not spec.limits.software


def _silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""
