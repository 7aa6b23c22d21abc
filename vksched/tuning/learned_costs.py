"""Lessons: costs that runs showed, kept for later schedulers.

    runs --pace.py--> how many times longer than planned: device d, and op o besides
    plan ----------> its calls on the device, each with first seconds s
                          |
        call that was never measured:  a sample of s * d * o
        call that was measured:        its sample times o;  the device's pace times d, damped

Problem: calls take longer or shorter in a model than measured one by one, and some were never
measured. But a run may be slow because its computer is busy, and says nothing of a later run then.
Method: a factor that all calls of a device have in common is its pace, apart from samples. A faster
pace counts at once, as only the device itself makes a median of runs faster. Of a slower pace half
of the way counts, and half of it is forgotten each day (`Calibration.recovered`): a device that was
busy once is tried again. Differences among ops stay. Costs that are nearly as known change nothing,
so kept plans stay valid. Devices of other computers, and devices that are slowed down on purpose,
teach nothing.

Lessons are kept when a scheduler closes or the program ends. Complexity: O(nodes) once for each
plan. Examples: tests/tuning/test_learned_costs.py.
"""

from __future__ import annotations

import datetime
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..common.fork_guard import Owner
from ..plan.costs.node_cost import call_cost, call_of, call_work, estimate, first_cost, way_of
from ..plan.types.plan_types import PlanValue
from ..runtime.device import Device
from ..runtime.executors.speed_tracker import Paces
from ..runtime.simulated.device_wrapper import WrappedDevice
from ..topology.device_spec import DeviceSpec
from ..topology.host_names import CALLER, host_of
from .calibration_types import Calibration, Overheads, Sample, sample_of, speeds_of
from .calibrator import Calibrator, kept_as
from .tunable_calls import shader_hash

NEAR = math.log(1.15)
"""A cost within this factor of the known one changes nothing."""
SLOWER = 0.5
"""Of the way to a slower pace, as logarithms, that runs of one scheduler move it."""

Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """A call of a plan that ran. way, bound, estimate_s: as its sample has them. first_s: what it
    was expected to take on a device that works as it did when it was measured.
    """

    op: str
    way: str
    bound: str
    estimate_s: float
    first_s: float

    def sample(self, taken_s: float, launch_s: float, shaders: str) -> Sample:
        """Return the call as a sample of some seconds."""
        return sample_of(self.way, self.estimate_s, self.bound, taken_s, launch_s, shaders)


class Lessons:
    """The lessons of one scheduler's runs. The caller notes plans under a lock, or one by one."""

    def __init__(self, paces: Paces, calibrator: Calibrator) -> None:
        self._paces = paces
        self._calibrator = calibrator
        self._owner = Owner()
        self._calls: dict[str, dict[Place, Seen]] = {}
        self._specs: dict[str, DeviceSpec] = {}
        self._expected: weakref.WeakKeyDictionary[PlanValue, dict[int, dict[Place, Seen]]] = (
            weakref.WeakKeyDictionary()
        )

    def expect(self, plan: PlanValue, devices: Sequence[Device]) -> None:
        """Find the calls of a plan before it runs. devices: as its machine has them."""
        self._expected[plan] = {
            index: _calls_of(plan, index)
            for index, device in enumerate(devices)
            if _learns(plan.machine.devices[index], device)
        }

    def note(self, plan: PlanValue, devices: Sequence[Device]) -> None:
        """Take in the calls of a plan whose runs are measured. devices: as its machine has them."""
        for index, calls in self._expected.pop(plan, {}).items():
            name = plan.machine.devices[index].name
            self._specs[name] = devices[index].spec
            self._calls.setdefault(name, {}).update(calls)

    def keep(self) -> None:
        """Keep costs that differ from the known ones; in a forked child nothing."""
        if self._owner.forked:
            return
        for name, calls in list(self._calls.items()):
            usual = self._paces.usual(name)
            if usual is not None:
                known = self._calibrator.known(self._specs[name])
                lesson = lesson_of(self._specs[name], known, dict(calls), *usual)
                if lesson is not None:
                    self._calibrator.teach(self._specs[name], lesson)


def _learns(spec: DeviceSpec, device: Device) -> bool:
    """Return True if costs of a device are kept: a real one of this host."""
    ours = host_of(spec.name) == CALLER and not isinstance(device, WrappedDevice)
    return ours and kept_as(spec) is not None


def lesson_of(
    spec: DeviceSpec,
    known: Calibration,
    calls: Mapping[Place, Seen],
    usual: float,
    ops: Mapping[str, float],
) -> Calibration | None:
    """Return the costs to be kept of a device's runs; None if they are as known.

    Parameters
    ----------
    calls
        Of plans that ran there, by the places of their samples.
    usual, ops
        How many times longer the device and, besides, each op took than expected, as logarithms.
        Ops that no run tells of are left out.
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
        beside, old = ops[call.op], measured.get(place)
        if old is None:
            shaders = shader_hash(call.op) if spec.kind == "vulkan" else ""
            taken_s = call.first_s * math.exp(usual + beside) / pace
            samples.append(call.sample(taken_s, overheads.launch_s, shaders))
        elif abs(beside) > NEAR:
            samples.append(replace(old, factor=old.factor * math.exp(beside)))
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


def _calls_of(plan: PlanValue, device: int) -> dict[Place, Seen]:
    """Return the distinct calls of a plan on a device."""
    graph, spec = plan.graph, plan.machine.devices[device]
    nodes = {
        graph.signatures[n]: graph.nodes[n]
        for split in plan.splits
        if split.device == device
        for n in split.nodes
        if n not in graph.views and not graph.nodes[n].declaration.stateful
    }
    out: dict[Place, Seen] = {}
    for node in nodes.values():
        op, call = node.declaration, call_of(spec, graph, node)
        first_s = first_cost(spec, graph, node).seconds
        if spec.kind == "cpu":  # an epilogue is a pass of its own there
            call = call.bare
            first_s = call_cost(spec, op, call, node.id in graph.written_over).seconds
        estimate_s, bound = estimate(spec, call_work(spec, op, call))
        seen = Seen(node.op, way_of(op, call), bound, estimate_s, first_s)
        out[seen.sample(first_s, 0.0, "").place] = seen
    return out
