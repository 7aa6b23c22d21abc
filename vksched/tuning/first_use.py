"""First use: measurements that a scheduler makes without being asked, of new devices.

    graph --> each device: overheads, links, calls, most expensive first, FIRST_USE_S in total
          --> plan --> software devices that have work: also calls with slow compilation

A software Vulkan driver compiles a kernel when it first runs, which may take seconds for a matmul.
Therefore only calls with short kernels are measured there at first; others are estimated by rough
speeds. A device that has work in the resulting plan would compile its kernels for the first run
anyway: its calls are measured, and the compile time does not count. Results are cached. The host
may have been busy at the first start. Therefore the second start measures again in the remaining
time, and the shorter times count. Later starts measure only new calls, while time is left. Runs
show the rest (learned_costs.py).

With `tune=True` or a number of seconds, all calls of all devices are measured. Examples:
tests/tuning/test_calibrator.py.
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
from .calibration_samples import CalibrationSample, calibration_samples
from .calibration_types import Calibration
from .calibrator import Calibrator, cost_cache_key
from .measurement import Mode, is_busy, no_progress

FIRST_USE_S, START_S = 0.5, 0.3
"""Time for one device while its results are cached, and the part of it for one scheduler."""
MAX_S = 5.0
"""Time for all devices if the user asks to measure all missing costs."""
MAX_OPS = 10_000
"""Planning of a larger graph takes long: there runs show the costs of calls."""
LIGHT = ("elementwise", "layout")
"""Families of ops whose kernels software drivers compile in some hundredths of a second."""


class FirstUse:
    """The measurements of one scheduler. The scheduler holds a lock during calls."""

    def __init__(self, mode: Mode, calibrator: Calibrator) -> None:
        self._mode = mode
        self.calibrator = calibrator
        self._asked_s = min(mode.budget_s, MAX_S)
        """The rest of the time that the user asked for, for all devices."""
        self._not_measurable: set[tuple[str, str, str, int]] = set()
        self._begun: dict[str, Calibration] = {}
        """By device, its calibration before this scheduler measured it."""
        self._measured: set[str] = set()
        self._spent: dict[str, float] = {}
        """By device, seconds of this scheduler's measurements, including failed ones."""
        self._unused: set[tuple[str, str, str, int]] = set()
        """Calls that a plan with known costs placed on other devices."""

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
            The versions of the graph that a device may run: its own, and the one for all devices.
        devices
            All devices; the last one is the host.
        spec_of
            Returns the tuned spec of a device.
        with_cpu
            Whether the host is selected; if not, it is measured only together with hardware.
        plan
            Creates a plan with the costs known by then.

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
        changed = False
        for number, device in enumerate(wants):
            share_s = self._left_s(device.spec) / (len(wants) - number if self._asked else 1)
            changed |= self._measure(device, share_s, self._compiles_slowly(device), *about)
        slow: dict[Device, set[tuple[str, str, str, int]]] = {}
        for device in wants:
            if not self._compiles_slowly(device) or self._left_s(device.spec) <= 0:
                continue
            calls = self._missing(graphs(device), spec_of(device))
            places = {(device.name, *call.place) for call in calls}
            if places - self._unused:
                slow[device] = places
        if slow and len(graphs(next(iter(slow)))[0].ops) <= MAX_OPS:
            built_plan = plan()
            used = {built_plan.topology.devices[number].name for number in built_plan.working}
            for device, places in slow.items():
                if device.name in used:
                    changed |= self._measure(device, self._left_s(device.spec), False, *about)
                else:
                    self._unused |= places
        return changed

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
        # a throttled device does not show the costs of the wrapped one
        if (
            cost_cache_key(spec) is None
            or isinstance(device, WrappedDevice)
            or self._left_s(spec) <= 0
        ):
            return False
        if spec.kind != "cpu" or with_cpu or self._asked:
            return True
        return any(_is_hardware(each.spec) for each in devices)

    def _compiles_slowly(self, device: Device) -> bool:
        """Return True if kernels compile slowly at their first run and the user did not ask to
        measure.
        """
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
        """Measure a device for some seconds. light: True to measure only calls whose kernels
        compile quickly.
        """
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
        again = bool(starts) and self._is_second_start(device.spec)
        about = no_progress, trace.clock, again
        found = known
        try:
            found = calibrator.measure(
                device, host, calls, share_s, *about, quick=quick, starts=starts
            )
        finally:
            spent_s = time.monotonic() - before
            # a failure uses up the time of the device
            own_s = found.spent_s - known.spent_s or spent_s
            self._spent[device.name] = self._spent.get(device.name, 0.0) + own_s
        if self._asked:
            self._asked_s -= spent_s
        if spent_s < share_s:  # all were tried: some cannot be measured
            self._not_measurable.update((device.name, *call.place) for call in calls)
        fields = {"calls": len(found.samples) - len(known.samples)}
        trace.emit(Event("calibrate", device.name, start, trace.clock.now(), fields=fields))
        return True

    def _is_second_start(self, spec: DeviceSpec) -> bool:
        """Return True if this is the second start that measures a device without results of
        runs.
        """
        begun = self._begun.get(spec.name)
        return not self._asked and begun is not None and begun.starts == 1 and not begun.seen

    def _missing(self, graphs: Sequence[Graph], spec: DeviceSpec) -> list[CalibrationSample]:
        """Return the calls of graphs without samples, the most expensive first. In the second
        start, calls that were measured once and that no run has shown follow.
        """
        known = {sample.place for sample in self.calibrator.known(spec).samples}
        once = self._is_second_start(spec)
        first: dict[tuple[str, str, int], CalibrationSample] = {}
        wanted = [call for graph in graphs for call in calibration_samples(graph, spec)]
        for call in sorted(wanted, key=lambda call: -call.seconds):
            place = call.place
            if (once or place not in known) and (spec.name, *place) not in self._not_measurable:
                first.setdefault(place, call)
        return sorted(first.values(), key=lambda call: call.place in known)


def _is_hardware(spec: DeviceSpec) -> bool:
    return spec.kind == "vulkan" and not spec.limits.software
