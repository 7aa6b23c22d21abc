"""Simulate a pipeline schedule: start times of actions, idle times, and values in memory.

Complexity: actions. Examples: tests/parallel/test_pipeline_schedules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .schedule_types import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, PipelineSchedule


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of the phases of one stage for one microbatch; B takes I and W together. `transfer_s`
    is the time from one device to the next.
    """

    forward_s: float = 1.0
    inputs_s: float = 1.0
    weights_s: float = 1.0
    transfer_s: float = 0.0

    def of(self, phase: str) -> float:
        """Return the seconds of a phase."""
        return {
            FORWARD: self.forward_s,
            BACKWARD: self.inputs_s + self.weights_s,
            INPUTS: self.inputs_s,
            WEIGHTS: self.weights_s,
        }[phase]


@dataclass(frozen=True)
class Simulated:
    """A simulated schedule.

    `start_s` and `finish_s` hold the times of each action; `peak_held` by device the maximum number
    of pairs of a stage and a microbatch whose values are in memory at once, from their F to their B
    or W.
    """

    schedule: PipelineSchedule
    start_s: dict[Action, float]
    finish_s: dict[Action, float]
    peak_held: tuple[int, ...]

    @cached_property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last finish."""
        return max(self.finish_s.values())

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """By device, the seconds of its actions."""
        return tuple(
            sum(self.finish_s[a] - self.start_s[a] for a in order) for order in self.schedule.orders
        )

    @cached_property
    def bubble_s(self) -> float:
        """The maximum seconds that a device is idle between its first action and its last."""
        return max(
            self.finish_s[order[-1]] - self.start_s[order[0]] - busy
            for order, busy in zip(self.schedule.orders, self.busy_s, strict=True)
        )

    @property
    def bubble_share(self) -> float:
        """`bubble_s` as a fraction of itself plus the longest busy time of a device."""
        return self.bubble_s / (self.bubble_s + max(self.busy_s))


def simulate(
    schedule: PipelineSchedule, times: PhaseTimes | Sequence[PhaseTimes] = PhaseTimes()
) -> Simulated:
    """Simulate a schedule; each action starts once its device is free and its dependencies are
    complete.

    times: those of all stages, or a sequence with those of each stage.

    Raises
    ------
    PlanError
        Devices wait for each other in a cycle.
    """
    of = [times] * schedule.stages if isinstance(times, PhaseTimes) else list(times)
    start: dict[Action, float] = {}
    finish: dict[Action, float] = {}
    free, held, peak = ([0.0] * schedule.devices, *([0] * schedule.devices for _ in range(2)))
    for device, action in schedule.in_order():
        ready = free[device]
        for need in schedule.needs(action):
            crosses = schedule.device_of[need] != device
            ready = max(ready, finish[need] + (of[action.stage].transfer_s if crosses else 0.0))
        start[action] = ready
        finish[action] = free[device] = ready + of[action.stage].of(action.phase)
        # actions of a device are visited in time order, so values can be counted here
        held[device] += action.phase == FORWARD
        peak[device] = max(peak[device], held[device])
        held[device] -= action.phase in (BACKWARD, WEIGHTS)
    return Simulated(schedule, start, finish, tuple(peak))
