"""Simulation of a dynamic run, with a clock in place of devices.

The loop and the decisions are the executor's own; only the dispatch target differs. Simulated
devices take equal times and make equal decisions. Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..simulation.event_sim import DeviceQueues
from ..types.plan_types import HOST
from .dispatcher import POLICIES, DynamicRunRecord, Speeds, execute
from .options import Options


@dataclass(frozen=True, slots=True)
class Simulated:
    """The expected course of a run. busy_s: seconds of work of each device."""

    seconds: float
    tape: DynamicRunRecord
    busy_s: Mapping[int, float]


class _Clock:
    """A dispatch target that simulates the time of devices."""

    def __init__(self, options: Options, slowdowns: Mapping[int, float]) -> None:
        self._options = options
        self._slow = slowdowns
        self._device_of: dict[int, int] = {}
        self._ends_s: dict[int, float] = {}
        self._queues = DeviceQueues(options.topology.queues)
        self.busy_s = dict.fromkeys(range(len(options.topology.devices)), 0.0)
        self.now_s = max((d.costs.run_s for d in options.topology.devices), default=0.0)

    def now(self) -> float:
        return self.now_s

    def bring(self, value: int, source: int, device: int) -> None:
        options = self._options
        if source != HOST:
            self.now_s += options.leaves_s(value, self._device_of[source])
        self.now_s += options.enters_s(value, device)
        if not options.topology.is_cpu(device):
            self._work(device, options.entry_s(value, device))

    def submit(self, piece: int, device: int) -> None:
        self._device_of[piece] = device
        self._ends_s[piece] = self._work(device, self._options.pieces[piece].seconds[device])

    def wait(self, heads: list[tuple[int, int]]) -> tuple[int, float]:
        piece, device = min(heads, key=lambda head: self._ends_s[head[0]])
        fence_s = self._options.topology.devices[device].costs.fence_s
        self.now_s = max(self.now_s, self._ends_s[piece]) + fence_s
        return piece, self._slowed(device, self._options.pieces[piece].seconds[device])

    def _work(self, device: int, seconds: float) -> float:
        self.now_s += self._options.topology.devices[device].costs.submit_s
        taken_s = self._slowed(device, seconds)
        self.busy_s[device] += taken_s
        return self._queues.work(device, self.now_s, taken_s)[1]

    def _slowed(self, device: int, seconds: float) -> float:
        return self._slow.get(device, 1.0) * seconds


def simulate_options(
    options: Options,
    policy: str,
    speeds: Speeds | None = None,
    slowdowns: Mapping[int, float] | None = None,
) -> Simulated:
    """Return the expected course of a run.

    speeds: the ratios learned from earlier runs, updated by this one. slowdowns: for each device,
    the true ratio of its time to the expected one.
    """
    graph, clock = options.graph, _Clock(options, slowdowns or {})
    speeds = speeds or Speeds(len(options.topology.devices))
    speeds.begin()
    dispatcher = POLICIES[policy](options, speeds)
    execute(dispatcher, clock)
    seconds = clock.now_s
    for _, output in graph.outputs:
        maker = options.makers.get(graph.view_base(output))
        if maker is not None:
            seconds += options.leaves_s(graph.view_base(output), dispatcher.device_of[maker])
    return Simulated(seconds, dispatcher.tape, clock.busy_s)
