"""First use: a scheduler measures devices by itself that were never measured.

    graph --> each device: overheads, links, calls, the dearest first, for FIRST_USE_S in its life
          --> plan --> software devices that have work: also calls that take long to translate

A software Vulkan driver translates a kernel when it first runs, which may take seconds for that of
a product. So there only calls with short kernels are measured at first; others count by rough
speeds. A device that has work in the plan by these costs would translate its kernels for the first
run anyway: its calls are measured, and that part of the time does not count. Results are kept. The
computer may have been busy at the first start. So the second start measures again in the time that
is left, and the shorter times count. Later starts measure only calls that are new, as long as time
is left. Runs teach the rest (lessons.py).

A scheduler that is asked to measure (`tune=True`, or seconds) measures all calls of all devices.
Examples: tests/tuning/test_calibrator.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..ir.graph import Graph
from ..plan.costs.node_cost import family_of
from ..plan.types.plan_types import PlanValue
from ..runtime.device import Device
from ..runtime.simulated.device_wrapper import WrappedDevice
from ..topology.device_spec import DeviceSpec
from ..trace import Event, Trace
from .autotuner import Mode, is_busy
from .calibration_samples import CalibrationSample, calibration_samples
from .calibration_types import Calibration
from .calibrator import Calibrator, kept_as

FIRST_USE_S, START_S = 0.5, 0.3
"""For one device, as long as its results are kept, and of that in one scheduler."""
MAX_S = 5.0
"""For all devices of a scheduler that is told to measure all that is missing."""
MAX_OPS = 10_000
"""Of a larger graph a plan takes long: there runs tell the costs of calls."""
LIGHT = ("elementwise", "layout")
"""The families of ops whose kernels software drivers translate in some hundredths of a second."""


class FirstUse:
    """The measurements of one scheduler. The caller holds a lock."""

    def __init__(self, mode: Mode, calibrator: Calibrator) -> None:
        self._mode = mode
        self.calibrator = calibrator
        self._asked_s = min(mode.budget_s, MAX_S)
        """Left of what the user asked for, for all devices."""
        self._given_up: set[tuple[str, str, str, int]] = set()
        self._begun: dict[str, Calibration] = {}
        """By device, what was known of it before this scheduler measured anything."""
        self._measured: set[str] = set()
        self._spent: dict[str, float] = {}
        """By device, seconds of this scheduler's measurements, also of those that failed."""
        self._unused: set[tuple[str, str, str, int]] = set()
        """Calls that a plan by known costs gave to other devices."""

    def measure(
        self,
        graphs: Callable[[Device], Sequence[Graph]],
        devices: Sequence[Device],
        spec_of: Callable[[Device], DeviceSpec],
        with_cpu: bool,
        plan: Callable[[], PlanValue],
        trace: Trace,
    ) -> bool:
        """Measure the costs that are missing to plan a graph.

        Parameters
        ----------
        graphs
            The versions of the graph that a device may run: its own one, and that for all devices.
        devices
            The last one is the host.
        spec_of
            A device as plans see it, tuned.
        with_cpu
            Whether the host is named or used by default; else it is measured beside hardware only.
        plan
            Makes a plan by the costs that are known then.

        Returns
        -------
        bool
            Whether anything was measured.

        Raises
        ------
        DeviceError
            A device failed; its `device` and `during` are set.
        """
        wants = [device for device in devices if self._wants(device, devices, with_cpu)]
        about = graphs, devices[-1], spec_of, trace
        made = False
        for number, device in enumerate(wants):
            share_s = self._left_s(device.spec) / (len(wants) - number if self._asked else 1)
            made |= self._measure(device, share_s, self._translates(device), *about)
        slow: dict[Device, set[tuple[str, str, str, int]]] = {}
        for device in wants:
            if not self._translates(device) or self._left_s(device.spec) <= 0:
                continue
            calls = self._missing(graphs(device), spec_of(device))
            places = {(device.name, *call.place) for call in calls}
            if places - self._unused:
                slow[device] = places
        if slow and len(graphs(next(iter(slow)))[0].ops) <= MAX_OPS:
            made_by = plan()
            used = {made_by.topology.devices[number].name for number in made_by.working}
            for device, places in slow.items():
                if device.name in used:
                    made |= self._measure(device, self._left_s(device.spec), False, *about)
                else:
                    self._unused |= places
        return made

    @property
    def _asked(self) -> bool:
        return self._mode.software

    def _left_s(self, spec: DeviceSpec) -> float:
        if self._asked:
            return self._asked_s
        known = self.calibrator.known(spec)
        begun, own_s = self._begun.setdefault(spec.name, known), self._spent.get(spec.name, 0.0)
        left_s = min(FIRST_USE_S - begun.spent_s, START_S) - own_s
        return min(self._mode.budget_s, left_s)

    def _wants(self, device: Device, devices: Sequence[Device], with_cpu: bool) -> bool:
        spec = device.spec
        # one that is slower on purpose says nothing of the device inside
        if kept_as(spec) is None or isinstance(device, WrappedDevice) or self._left_s(spec) <= 0:
            return False
        if spec.kind != "cpu" or with_cpu or self._asked:
            return True
        return any(_is_hardware(each.spec) for each in devices)

    def _translates(self, device: Device) -> bool:
        """Whether kernels take long before they first run there, and nobody asked for that."""
        spec = device.spec
        return not self._asked and spec.kind == "vulkan" and spec.limits.software

    def _measure(
        self,
        device: Device,
        share_s: float,
        light: bool,
        graphs: Callable[[Device], Sequence[Graph]],
        host: Device,
        spec_of: Callable[[Device], DeviceSpec],
        trace: Trace,
    ) -> bool:
        """Measure a device for some seconds. light: only calls whose kernels are short."""
        calibrator = self.calibrator
        calls = self._missing(graphs(device), spec_of(device))
        if light:
            calls = [call for call in calls if family_of(call.op) in LIGHT]
        known = calibrator.known(device.spec)
        sure = known and not known.guessed
        if (not calls and sure) or share_s <= 0 or is_busy(device):
            return False
        start, before = trace.clock.now(), time.monotonic()
        quick = not self._asked
        starts = int(device.name not in self._measured)
        self._measured.add(device.name)
        again = bool(starts) and self._confirms(device.spec)
        about = _silent, trace.clock, again
        found = known
        try:
            found = calibrator.measure(
                device, host, calls, share_s, *about, quick=quick, starts=starts
            )
        finally:
            spent_s = time.monotonic() - before
            own_s = found.spent_s - known.spent_s or spent_s  # a failure takes all of its time
            self._spent[device.name] = self._spent.get(device.name, 0.0) + own_s
        if self._asked:
            self._asked_s -= spent_s
        if spent_s < share_s:  # all were tried: some cannot be measured
            self._given_up.update((device.name, *call.place) for call in calls)
        fields = {"calls": len(found.samples) - len(known.samples)}
        trace.emit(Event("calibrate", device.name, start, trace.clock.now(), fields=fields))
        return True

    def _confirms(self, spec: DeviceSpec) -> bool:
        """Whether this is the second start that measures a device of which no run has told."""
        begun = self._begun.get(spec.name)
        return not self._asked and begun is not None and begun.starts == 1 and not begun.seen

    def _missing(self, graphs: Sequence[Graph], spec: DeviceSpec) -> list[CalibrationSample]:
        """Return the calls of graphs whose op, bound and size nobody has measured, the dearest
        first. In the second start those follow that were measured once, where no run has told.
        """
        known = {sample.place for sample in self.calibrator.known(spec).samples}
        once = self._confirms(spec)
        first: dict[tuple[str, str, int], CalibrationSample] = {}
        wanted = [call for graph in graphs for call in calibration_samples(graph, spec)]
        for call in sorted(wanted, key=lambda call: -call.seconds):
            place = call.place
            if (once or place not in known) and (spec.name, *place) not in self._given_up:
                first.setdefault(place, call)
        return sorted(first.values(), key=lambda call: call.place in known)


def _is_hardware(spec: DeviceSpec) -> bool:
    return spec.kind == "vulkan" and not spec.limits.software


def _silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""
