"""Sufferage: the ready task that loses most if it does not get its best device.

Source: Maheswaran, Ali, Siegel, Hensgen, Freund, "Dynamic mapping of a class of independent tasks
onto heterogeneous computing systems", JPDC 59(2), 1999.
Complexity: see ready.py. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

import numpy as np

from ..model.problem import INFINITY, Problem
from ..model.simulate_tasks import TaskPlacement
from .ready import Step, place_ready


def sufferage(problem: Problem) -> TaskPlacement:
    """Return the schedule of sufferage."""
    return place_ready(problem, pick)


def pick(step: Step) -> int:
    """Return the best cell of the task with the largest loss. A task with a single device has an
    infinite loss.
    """
    m = int(step.finish.shape[1])
    if m == 1:
        return int(step.finish.argmin())
    best = np.partition(step.finish, 1, axis=1)
    loss = np.where(best[:, 1] == INFINITY, INFINITY, 0.0)
    both = best[:, 1] < INFINITY
    loss[both] = best[both, 1] - best[both, 0]
    at = int(loss.argmax())
    return at * m + int(step.finish[at].argmin())
