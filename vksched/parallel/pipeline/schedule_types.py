"""Schedule types: the actions of each device in order.

The dependencies of an action follow from its phase:

    F of stage s      needs F of stage s - 1
    B, I of stage s   need B or I of stage s + 1, and F of stage s
    W of stage s      needs I of stage s

B is the whole backward pass of a stage. I and W are its two parts: the gradients of the inputs of
the stage, which the previous stage waits for, and those of its weights, which no stage waits for.

Complexity of all checks: actions. Examples: tests/parallel/test_pipeline_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ...common.errors import PlanError

FORWARD, BACKWARD, INPUTS, WEIGHTS = PHASES = ("F", "B", "I", "W")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One phase of one stage for one microbatch."""

    phase: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.phase}{self.microbatch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """The actions of each device in order; `training` is True if there is a backward pass."""

    name: str
    stages: int
    microbatches: int
    orders: tuple[tuple[Action, ...], ...]
    training: bool = True

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.orders)

    @cached_property
    def device_of(self) -> dict[Action, int]:
        """The device of each action."""
        return {a: device for device, order in enumerate(self.orders) for a in order}

    @cached_property
    def weights_of(self) -> tuple[tuple[int, ...], ...]:
        """By device, the stages whose weights it holds."""
        return tuple(tuple(sorted({a.stage for a in order})) for order in self.orders)

    @property
    def weight_copies(self) -> float:
        """The number of copies of the model weights on all devices together."""
        return sum(len(held) for held in self.weights_of) / self.stages

    def needs(self, action: Action) -> Iterator[Action]:
        """Yield the dependencies of an action, except earlier actions of its device."""
        stage, batch = action.stage, action.microbatch
        if action.phase == FORWARD:
            if stage > 0:
                yield Action(FORWARD, stage - 1, batch)
        elif action.phase == WEIGHTS:
            yield Action(INPUTS, stage, batch)
        else:
            yield Action(FORWARD, stage, batch)
            if stage + 1 < self.stages:
                after = Action(INPUTS, stage + 1, batch)
                yield after if after in self.device_of else Action(BACKWARD, stage + 1, batch)

    def verify(self) -> PipelineSchedule:
        """Return the schedule after checking it: each stage processes each microbatch once,
        completely and on one device, and devices do not wait for each other in a cycle.

        Raises
        ------
        PlanError
            A check fails.
        """
        if sum(map(len, self.orders)) != len(self.device_of):
            raise PlanError(f"[pipeline] {self.name} does an action twice")
        for stage in range(self.stages):
            for batch in range(self.microbatches):
                self._verify_whole(stage, batch)
        wanted = self.stages * self.microbatches
        if sum(a.phase == FORWARD for a in self.device_of) != wanted:
            raise PlanError(f"[pipeline] {self.name} has stages or microbatches that are not there")
        for _ in self.in_order():
            pass
        return self

    def _verify_whole(self, stage: int, batch: int) -> None:
        there = "".join(p for p in PHASES if Action(p, stage, batch) in self.device_of)
        if there not in (("FB", "FIW") if self.training else ("F",)):
            raise PlanError(
                f"[pipeline] {self.name} does {there or 'nothing'} of stage {stage} for "
                f"microbatch {batch}"
            )
        if len({self.device_of[Action(p, stage, batch)] for p in there}) > 1:
            raise PlanError(f"[pipeline] {self.name} parts stage {stage} of microbatch {batch}")

    def in_order(self) -> Iterator[tuple[int, Action]]:
        """Yield each device and action, after their dependencies.

        Raises
        ------
        PlanError
            Devices wait for each other in a cycle.
        """
        done: set[Action] = set()
        at = [0] * self.devices
        moved = True
        while moved:
            moved = False
            for device, order in enumerate(self.orders):
                while at[device] < len(order):
                    action = order[at[device]]
                    if not done.issuperset(self.needs(action)):
                        break
                    done.add(action)
                    at[device] += 1
                    moved = True
                    yield device, action
        stuck = [
            f"device {d} before {o[i]} of stage {o[i].stage}"
            for d, (o, i) in enumerate(zip(self.orders, at, strict=True))
            if i < len(o)
        ]
        if stuck:
            raise PlanError(f"[pipeline] {self.name} waits for ever: {', '.join(stuck)}")

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, order)) for order in self.orders)


def check_counts(name: str, devices: int, microbatches: int) -> None:
    """Raise PlanError unless there are a device and a microbatch."""
    if devices < 1 or microbatches < 1:
        raise PlanError(
            f"[pipeline] expected devices and microbatches of 1 or more for {name}, got {devices} "
            f"and {microbatches}"
        )
