"""Zero bubble: defer the gradients of weights until a device would be idle.

No action waits for W, so it fills gaps between I and F. H1 holds as many microbatches as 1F1B, p,
and is idle for a third of its time if F, I and W take equally long. H2 starts more forward passes,
holds up to 2 p - 1 microbatches, and is never idle between its first action and its last.
"""

from __future__ import annotations

from collections.abc import Callable

from .schedule_types import (
    FORWARD,
    INPUTS,
    WEIGHTS,
    Action,
    PipelineSchedule,
    check_counts,
)


def zb_h1(devices: int, microbatches: int) -> PipelineSchedule:
    """Return the zero bubble schedule with the memory of 1F1B, idle for (p - 1)(F + I - W).

    Source: Qi, Wan, Huang and Lin, Zero bubble pipeline parallelism, ICLR 2024.
    """
    return _zero_bubble("zb-h1", devices, microbatches, lambda left: left, devices)


def zb_h2(devices: int, microbatches: int) -> PipelineSchedule:
    """Return the zero bubble schedule with about twice the memory of 1F1B, idle for (p - 1)(F + I -
    2 W), which is zero if all three take equally long and there are at least 2 p - 1 microbatches.

    Source: as `zb_h1`.
    """
    return _zero_bubble("zb-h2", devices, microbatches, lambda left: 2 * left - 1, 2 * devices - 1)


def _zero_bubble(
    name: str, devices: int, microbatches: int, first_of: Callable[[int], int], most: int
) -> PipelineSchedule:
    """Return a zero bubble schedule.

    first_of: (number of devices from one on) -> forward passes before its first I. most: maximum
    number of microbatches whose W is pending.
    """
    check_counts(name, devices, microbatches)
    orders = []
    for stage in range(devices):
        begun = min(first_of(devices - stage), microbatches)
        order = [Action(FORWARD, stage, i) for i in range(begun)]
        ended = 0
        for i in range(microbatches):
            order.append(Action(INPUTS, stage, i))
            if begun == microbatches or begun - ended == most:
                order.append(Action(WEIGHTS, stage, ended))
                ended += 1
            if begun < microbatches:
                order.append(Action(FORWARD, stage, begun))
                begun += 1
        order += [Action(WEIGHTS, stage, i) for i in range(ended, microbatches)]
        orders.append(tuple(order))
    return PipelineSchedule(name, devices, microbatches, tuple(orders))
