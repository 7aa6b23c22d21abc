"""Pipeline schedules as data: the order of actions of each device.

    device 0  F0 F1 F2 F3 .. .. B0 B1 B2 B3        F: forward, B: backward, .: idle
    device 1     F0 F1 F2 F3 B0 B1 B2 B3

A model is split into consecutive stages, a batch into microbatches. While the second device works
on the first microbatch, the first device works on the second one. A schedule is built by a pure
function from the number of devices and of microbatches, can be checked, simulated and drawn, and
needs neither graph nor device.
"""

from __future__ import annotations

from .chart import draw_chart, save_chart
from .dualpipe import dualpipe
from .gpipe_1f1b import gpipe, one_f_one_b
from .interleaved_1f1b import interleaved
from .schedule_types import PHASES, Action, PipelineSchedule
from .simulate_schedule import PhaseTimes, Simulated, simulate
from .zero_bubble import zb_h1, zb_h2

__all__ = [
    "PHASES",
    "Action",
    "PhaseTimes",
    "PipelineSchedule",
    "Simulated",
    "draw_chart",
    "dualpipe",
    "gpipe",
    "interleaved",
    "one_f_one_b",
    "save_chart",
    "simulate",
    "zb_h1",
    "zb_h2",
]
