"""Gantt chart of a schedule: a row for each device, time to the right, transfers between rows.

    schedule --> rows of bars, transfers --> viz/gantt.py --> SVG

Complexity: tasks + transfers, sorted. Examples: tests/schedule/test_gantt.py.
"""

from __future__ import annotations

import os

from ..common.formatting import format_bytes, format_joules, format_moment
from ..viz.gantt import Bar, Row, Transfer, draw_timeline
from ..viz.svg import save_picture
from .schedule_result import ScheduleValue


def save_gantt(plan: ScheduleValue, path: str | os.PathLike[str]) -> None:
    """Write the picture of a schedule.

    Raises
    ------
    PlanError
        The name does not end in .svg, or the file cannot be written.
    """
    save_picture(path, lambda: draw_gantt(plan))


def draw_gantt(plan: ScheduleValue) -> str:
    """Return the picture of a schedule as SVG text. Equal schedules give equal text."""
    devices = plan.where.devices
    bars: dict[str, list[Bar]] = {device: [] for device in devices}
    for name, device in plan.device.items():
        bars[device].append(Bar(plan.start_s[name], plan.finish_s[name], name))
    busy, span_s = plan.busy_s, plan.makespan_s or 1.0
    number = {device: at for at, device in enumerate(devices)}
    return draw_timeline(
        f"{len(plan.tasks)} tasks on {len(devices)} devices by {plan.policy}",
        _format_summary(plan),
        [Row(name, bars[name], f"{busy[name] / span_s:.0%} busy") for name in devices],
        [
            Transfer(
                number[t.source],
                number[t.target],
                t.start_s,
                t.finish_s,
                f"{t.producer} to {t.consumer}: {t.size_bytes:g} bytes",
            )
            for t in plan.transfers
        ],
        span_s=plan.makespan_s,
    )


def _format_summary(plan: ScheduleValue) -> str:
    """Return the makespan of a schedule, the value of its objective, and its ratio to the lower
    bound, if there is one.
    """
    word, value = plan.goal.word, plan.value
    parts = [format_moment(plan.makespan_s)]
    if word == "throughput":
        parts.append(f"{format_moment(value)} a run in a stream")
    elif word == "memory":
        parts.append(f"{format_bytes(round(value))} on the fullest device")
    elif word == "energy":
        parts.append(format_joules(value))
    elif not word:
        parts.append(f"{value:.3g} times the best of each for {plan.objective}")
    if plan.lower_bound > 0:
        parts.append(f"{plan.ratio:.3f} times the lower bound")
    return ", ".join(parts)
