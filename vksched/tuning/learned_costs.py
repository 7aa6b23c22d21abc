"""Learned costs: costs that runs showed, cached for later schedulers.

    runs --speed_tracker.py--> factor over the planned time: device d, and op o in addition
    plan --------------------> its calls on the device, each with first seconds s
                                    |
        call that was never measured:  a sample of s * d * o
        call that was measured:        its sample times o;  the device's pace times d, damped

Problem: calls take longer or shorter in a model than measured in isolation, and some were never
measured. But a run may be slow because its host is busy, and is not representative then. Method:
the common factor of all calls of a device is its pace, which is stored apart from samples. A faster
pace counts at once, because other programs cannot make the median of runs faster. Of a slower pace
half counts (as logarithm), and half of it is forgotten each day (`Calibration.recovered`), so that
a device that was busy once is tried again. Differences among ops stay. Costs that are nearly
unchanged are not written, so that cached plans stay valid. Devices of other hosts and throttled
devices are ignored.

Costs are written when a scheduler closes or the program ends. Complexity: O(nodes) once for each
plan. Examples: tests/tuning/test_learned_costs.py.
"""

from __future__ import annotations

import datetime
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..common.fork_guard import Owner
from ..plan.costs.node_cost import (
    call_cost,
    call_of,
    call_signature,
    call_work,
    estimate,
    first_cost,
)
from ..plan.types.plan_types import PlanValue
from ..runtime.device import Device
from ..runtime.executors.speed_tracker import SpeedTracker
from ..runtime.simulated.device_wrapper import WrappedDevice
from ..topology.device_spec import DeviceSpec
from ..topology.host_names import DRIVER, host_of
from .calibration_types import Calibration, Overheads, Sample, sample_of, speeds_of
from .calibrator import Calibrator, cost_cache_key
from .tunable_calls import shader_hash

NEAR = math.log(1.15)
"""Costs within this factor of the known ones are not written."""
SLOWER = 0.5
"""Share of a slower pace, as logarithm, that the runs of one scheduler add."""

Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """A call of a plan that ran.

    Parameters
    ----------
    way, bound, estimate_s
        As in its sample.
    first_s
        Expected seconds on a device that works as it did when it was measured.
    """

    op: str
    way: str
    bound: str
    estimate_s: float
    first_s: float

    def sample(self, taken_s: float, launch_s: float, shaders: str) -> Sample:
        """Return a sample of the call with measured seconds."""
        return sample_of(self.way, self.estimate_s, self.bound, taken_s, launch_s, shaders)


class LearnedCosts:
    """The learned costs of one scheduler's runs. Calls must be serialized by a lock."""

    def __init__(self, paces: SpeedTracker, calibrator: Calibrator) -> None:
        self._paces = paces
        self._calibrator = calibrator
        self._owner = Owner()
        self._calls: dict[str, dict[Place, ObservedCall]] = {}
        self._specs: dict[str, DeviceSpec] = {}
        self._expected: weakref.WeakKeyDictionary[
            PlanValue, dict[int, dict[Place, ObservedCall]]
        ] = weakref.WeakKeyDictionary()

    def expect(self, plan: PlanValue, devices: Sequence[Device]) -> None:
        """Collect the calls of a plan before it runs.

        Parameters
        ----------
        devices
            The devices, in the order of its topology.
        """
        self._expected[plan] = {
            index: _calls_of(plan, index)
            for index, device in enumerate(devices)
            if _is_cached(plan.topology.devices[index], device)
        }

    def note(self, plan: PlanValue, devices: Sequence[Device]) -> None:
        """Add the calls of a plan whose runs are measured.

        Parameters
        ----------
        devices
            The devices, in the order of its topology.
        """
        for index, calls in self._expected.pop(plan, {}).items():
            name = plan.topology.devices[index].name
            self._specs[name] = devices[index].spec
            self._calls.setdefault(name, {}).update(calls)

    def keep(self) -> None:
        """Cache costs that differ from the known ones; a forked child caches none."""
        if self._owner.forked:
            return
        for name, calls in list(self._calls.items()):
            usual = self._paces.usual(name)
            if usual is not None:
                known = self._calibrator.known(self._specs[name])
                lesson = lesson_of(self._specs[name], known, dict(calls), *usual)
                if lesson is not None:
                    self._calibrator.teach(self._specs[name], lesson)


def _is_cached(spec: DeviceSpec, device: Device) -> bool:
    """Return True if learned costs of a device are cached: a real device of this host."""
    ours = host_of(spec.name) == DRIVER and not isinstance(device, WrappedDevice)
    return ours and cost_cache_key(spec) is not None


def lesson_of(
    spec: DeviceSpec,
    known: Calibration,
    calls: Mapping[Place, ObservedCall],
    usual: float,
    ops: Mapping[str, float],
) -> Calibration | None:
    """Return the costs of a device with those that its runs showed; None if they are unchanged.

    Parameters
    ----------
    calls
        The calls of plans that ran there, by the keys of their samples.
    usual, ops
        Logarithms of the factors by which the device, and in addition each op, took longer
        than expected. Ops without results are left out.
    """
    calls = {place: call for place, call in calls.items() if call.op in ops}
    measured = {sample.place: sample for sample in known.samples}
    overheads = known.overheads or Overheads(spec.launch_s, submit_s=spec.submit_s)
    sure_s = sum(call.first_s for place, call in calls.items() if place in measured)
    all_s = sum(call.first_s for call in calls.values())
    pace = known.pace
    if all_s and sure_s >= all_s / 2 and abs(usual) > NEAR:
        pace *= math.exp(usual if usual < 0 else SLOWER * usual)
    samples: list[Sample] = []
    for place, call in calls.items():
        op_pace, old = ops[call.op], measured.get(place)
        if old is None:
            shaders = shader_hash(call.op) if spec.kind == "vulkan" else ""
            taken_s = call.first_s * math.exp(usual + op_pace) / pace
            samples.append(call.sample(taken_s, overheads.launch_s, shaders))
        elif abs(op_pace) > NEAR:
            samples.append(replace(old, factor=old.factor * math.exp(op_pace)))
    if not samples and pace == known.pace:
        return None
    return Calibration(
        speeds_of(spec),
        known.overheads or overheads,
        samples=tuple(samples),
        pace=pace,
        seen=datetime.date.today().isoformat(),
        guessed=known.guessed or not known,
    )


def _calls_of(plan: PlanValue, device: int) -> dict[Place, ObservedCall]:
    """Return the distinct calls of a plan on a device."""
    graph, spec = plan.graph, plan.topology.devices[device]
    nodes = {
        graph.signatures[n]: graph.nodes[n]
        for split in plan.splits
        if split.device == device
        for n in split.nodes
        if n not in graph.views and not graph.nodes[n].declaration.stateful
    }
    out: dict[Place, ObservedCall] = {}
    for node in nodes.values():
        op, call = node.declaration, call_of(spec, graph, node)
        first_s = first_cost(spec, graph, node).seconds
        if spec.kind == "cpu":  # on the CPU an epilogue is a separate pass
            call = call.without_epilogue
            first_s = call_cost(spec, op, call, node.id in graph.overwritten).seconds
        estimate_s, bound = estimate(spec, call_work(spec, op, call))
        seen = ObservedCall(node.op, call_signature(op, call), bound, estimate_s, first_s)
        out[seen.sample(first_s, 0.0, "").place] = seen
    return out
