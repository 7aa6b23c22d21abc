"""Interleaved 1F1B: several stages per device, so that the pipeline fills faster.

    device 0: stages 0, 2        a microbatch passes all devices twice
    device 1: stages 1, 3

With v stages per device the idle share falls to (p - 1) / (v m + p - 1), at the price of more
transfers and a few more microbatches in memory.
"""

from __future__ import annotations

from ...common.errors import PlanError
from .schedule_types import BACKWARD, FORWARD, Action, PipelineSchedule, check_counts


def interleaved(devices: int, microbatches: int, rounds: int = 2) -> PipelineSchedule:
    """Return the interleaved 1F1B schedule with `rounds` stages per device: stage s is on device s
    modulo devices.

    Microbatches are processed in groups of one per device, a group through one round of stages
    after the other, so their number has to be a multiple of the devices.

    Raises
    ------
    PlanError
        It is not.

    Source: Narayanan and others, Efficient large-scale language model training on GPU clusters
    using Megatron-LM, SC 2021.
    """
    check_counts("interleaved", devices, microbatches)
    if rounds < 1 or microbatches % devices:
        raise PlanError(
            "[pipeline] expected rounds of 1 or more and microbatches in multiples of the devices "
            f"for interleaved, got {rounds}, and {microbatches} for {devices} devices"
        )
    orders = []
    for device in range(devices):
        count = microbatches * rounds
        forward = [_action(FORWARD, i, device, devices, rounds) for i in range(count)]
        backward = [_action(BACKWARD, i, device, devices, rounds) for i in range(count)]
        first = min(2 * (devices - device - 1) + (rounds - 1) * devices + 1, count)
        order = forward[:first]
        for i in range(count):
            order.append(backward[i])
            order += forward[first + i : first + i + 1]
        orders.append(tuple(order))
    return PipelineSchedule("interleaved", devices * rounds, microbatches, tuple(orders))


def _action(phase: str, number: int, device: int, devices: int, rounds: int) -> Action:
    """Return the action with this index in one phase of a device."""
    group, rest = divmod(number, devices * rounds)
    at, inside = divmod(rest, devices)
    if phase == BACKWARD:
        at = rounds - 1 - at
    return Action(phase, at * devices + device, group * devices + inside)
