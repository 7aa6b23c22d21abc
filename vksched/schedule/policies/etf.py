"""Earliest task first: the ready task that can start first; ties go to the higher level.

Source: Hwang, Chow, Anger, Lee, "Scheduling precedence graphs in systems with interprocessor
communication times", SIAM Journal on Computing 18(2), 1989.
Complexity: see ready.py. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

import numpy as np

from ..model.problem import INFINITY, Problem
from ..model.simulate_tasks import TaskPlacement
from .ready import Step, place_ready


def etf(problem: Problem) -> TaskPlacement:
    """Return the schedule of earliest task first. For equal starts the earlier end has
    precedence.
    """
    return place_ready(problem, pick)


def pick(step: Step) -> int:
    """Return the cell with the earliest start, then the highest level, then the earliest end."""
    first = step.start == step.start.min()
    level = np.where(first.any(axis=1), step.level, -1.0)
    best = first & (level == level.max())[:, None]
    return int(np.where(best, step.finish, INFINITY).argmin())
