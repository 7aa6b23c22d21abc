"""Dynamic level scheduling: the level of the task, minus its start, plus the gain of the device.

Source: Sih, Lee, "A compile-time scheduling heuristic for interconnection-constrained heterogeneous
processor architectures", IEEE TPDS 4(2), 1993. Also known as GDL.
Complexity: see ready.py. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.problem import Problem
from ..model.simulate_tasks import TaskPlacement
from .ready import Step, place_ready


def dls(problem: Problem) -> TaskPlacement:
    """Return the schedule of dynamic levels."""
    return place_ready(problem, pick)


def pick(step: Step) -> int:
    """Return the cell with the highest dynamic level."""
    return int((step.level[:, None] - step.start + step.rest).argmax())
