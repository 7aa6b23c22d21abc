"""DualPipe: microbatches enter the pipeline from both ends.

    device 0: stages 0 and p - 1        one half of the microbatches goes down,
    device 1: stages 1 and p - 2        the other half up; each device holds the
    ...                                 weights of two stages

A device that would wait for one stream works on the other one. p devices are idle for about (p / 2
- 1)(F + B - 2 W), hold at most p + 1 microbatches, and two copies of the weights.
"""

from __future__ import annotations

from ...common.errors import PlanError
from .schedule_types import (
    BACKWARD,
    FORWARD,
    INPUTS,
    WEIGHTS,
    Action,
    PipelineSchedule,
    check_counts,
)


def dualpipe(devices: int, microbatches: int) -> PipelineSchedule:
    """Return the DualPipe schedule: stage s is on device s for the first half of the microbatches,
    and on device p - 1 - s for the second half.

    Raises
    ------
    PlanError
        The number of devices is odd, or that of microbatches is odd or less than twice
        the devices.

    Source: DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 3.2.1.
    """
    check_counts("dualpipe", devices, microbatches)
    if devices % 2 or microbatches % 2 or microbatches < 2 * devices:
        raise PlanError(
            "[pipeline] expected an even number of devices, and an even number of microbatches, "
            f"at least twice the devices, for dualpipe, got {devices} and {microbatches}"
        )
    orders = tuple(_Device(d, devices, microbatches).order() for d in range(devices))
    return PipelineSchedule("dualpipe", devices, microbatches, orders)


class _Device:
    """The order of one device. Its near stream enters the pipeline at the end closer to it."""

    def __init__(self, device: int, devices: int, microbatches: int) -> None:
        self._device, self._devices, self._half = device, devices, microbatches // 2
        self._lower = device >= devices // 2
        self._count = {(p, far): 0 for p in (FORWARD, BACKWARD) for far in (False, True)}
        self._waiting: list[tuple[int, int]] = []
        self._order: list[Action] = []

    def order(self) -> tuple[Action, ...]:
        depth = min(self._device, self._devices - 1 - self._device)
        rest = self._devices // 2 - depth - 1
        for _ in range(2 * rest):
            self._forward(False)
        for _ in range(depth + 1):
            self._forward(False)
            self._forward(True)
        for _ in range(rest):
            self._backward(True, whole=False)
            self._weights()
            self._forward(True)
        for _ in range(self._half - self._devices + depth + 1):
            self._forward(False)
            self._backward(True)
            self._forward(True)
            self._backward(False)
        for _ in range(rest):
            self._backward(True)
            self._forward(True)
            self._backward(False)
        for i in range(depth + 1):
            # from the middle on, gradients of weights are deferred
            late = i >= (depth + 1) // 2
            self._backward(True, whole=not late)
            self._backward(False, whole=not late)
        for _ in range(rest):
            self._weights()
            self._backward(False, whole=False)
        while self._waiting:
            self._weights()
        return tuple(self._order)

    def _place(self, phase: str, far: bool) -> tuple[int, int]:
        """Return the stage and microbatch of the next action of a stream."""
        number = self._count[phase, far]
        self._count[phase, far] += 1
        second = far != self._lower
        stage = self._devices - 1 - self._device if second else self._device
        return stage, number + (self._half if second else 0)

    def _forward(self, far: bool) -> None:
        self._order.append(Action(FORWARD, *self._place(FORWARD, far)))

    def _backward(self, far: bool, whole: bool = True) -> None:
        place = self._place(BACKWARD, far)
        if not whole:
            self._waiting.append(place)
        self._order.append(Action(BACKWARD if whole else INPUTS, *place))

    def _weights(self) -> None:
        self._order.append(Action(WEIGHTS, *self._waiting.pop(0)))
