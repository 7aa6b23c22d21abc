"""Chart of a pipeline schedule: a row for each device, with phases by colour and letter."""

from __future__ import annotations

import os

from ...viz.gantt import Bar, Row, draw_timeline
from ...viz.svg import save_picture
from .schedule_types import PHASES, Action
from .simulate_schedule import Simulated


def save_chart(simulated: Simulated, path: str | os.PathLike[str]) -> None:
    """Write the chart of a simulated schedule as SVG.

    Raises
    ------
    PlanError
        The name does not end in .svg, or the file cannot be written.
    """
    save_picture(path, lambda: draw_chart(simulated))


def draw_chart(simulated: Simulated) -> str:
    """Return the chart of a simulated schedule as SVG text. F3 is the forward pass of microbatch 3,
    B its backward pass, I and W the gradients of inputs and weights.
    """
    schedule = simulated.schedule
    rows = [
        Row(
            f"device {device}",
            [_bar(simulated, action) for action in order],
            f"stage {', '.join(map(str, schedule.weights_of[device]))}",
        )
        for device, order in enumerate(schedule.orders)
    ]
    caption = (
        f"{schedule.microbatches} microbatches, {schedule.stages} stages; idle "
        f"{simulated.bubble_share:.1%}; at most {max(simulated.peak_held)} microbatches held; "
        "F forward, B backward, I by inputs, W by weights"
    )
    return draw_timeline(f"Pipeline {schedule.name}", caption, rows, noun="action")


def _bar(simulated: Simulated, action: Action) -> Bar:
    start_s, finish_s = simulated.start_s[action], simulated.finish_s[action]
    return Bar(start_s, finish_s, str(action), PHASES.index(action.phase))
