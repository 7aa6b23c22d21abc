"""GPipe and 1F1B: one stage per device, with the pipeline filled once and drained once.

Both leave each device idle for (p - 1) / (m + p - 1) of the time, with p devices and m
microbatches. GPipe holds the values of all m microbatches at once, 1F1B at most those of p.
"""

from __future__ import annotations

from .schedule_types import BACKWARD, FORWARD, Action, PipelineSchedule, check_counts


def gpipe(devices: int, microbatches: int, training: bool = True) -> PipelineSchedule:
    """Return the GPipe schedule: all forward passes, then all backward passes.

    training: False omits the backward passes, for inference.

    Source: Huang and others, GPipe: efficient training of giant neural networks using pipeline
    parallelism, NeurIPS 2019.
    """
    check_counts("gpipe", devices, microbatches)
    phases = (FORWARD, BACKWARD) if training else (FORWARD,)
    orders = tuple(
        tuple(Action(phase, stage, i) for phase in phases for i in range(microbatches))
        for stage in range(devices)
    )
    return PipelineSchedule("gpipe", devices, microbatches, orders, training)


def one_f_one_b(devices: int, microbatches: int) -> PipelineSchedule:
    """Return the 1F1B schedule: each device starts with one forward pass for each device from it
    on, then alternates backward and forward passes.

    Source: Narayanan and others, PipeDream, SOSP 2019; Memory-efficient pipeline-parallel DNN
    training, ICML 2021.
    """
    check_counts("1f1b", devices, microbatches)
    orders = []
    for stage in range(devices):
        first = min(devices - stage, microbatches)
        order = [Action(FORWARD, stage, i) for i in range(first)]
        for i in range(microbatches):
            order.append(Action(BACKWARD, stage, i))
            if first + i < microbatches:
                order.append(Action(FORWARD, stage, first + i))
        orders.append(tuple(order))
    return PipelineSchedule("1f1b", devices, microbatches, tuple(orders))
