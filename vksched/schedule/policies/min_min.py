"""Min-min: the ready task that can end first, where it ends first.

Source: Ibarra, Kim, "Heuristic algorithms for scheduling independent tasks on nonidentical
processors", Journal of the ACM 24(2), 1977; for graphs: Braun and others, JPDC 61(6), 2001.
Complexity: see ready.py. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.problem import Problem
from ..model.simulate_tasks import TaskPlacement
from .ready import Step, place_ready


def min_min(problem: Problem) -> TaskPlacement:
    """Return the schedule of min-min."""
    return place_ready(problem, pick)


def pick(step: Step) -> int:
    """Return the cell with the earliest end."""
    return int(step.finish.argmin())
