"""Minimum completion time: tasks as they become ready, each where it ends first, without gaps.

Source: Armstrong, Hensgen, Kidd, "The relative performance of various mapping algorithms is
independent of sizable variances in run-time predictions", IEEE HCW, 1998.
Complexity: edges * devices. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import place_in_order
from ..model.problem import Problem
from ..model.simulate_tasks import TaskPlacement


def mct(problem: Problem) -> TaskPlacement:
    """Return the schedule of minimum completion time, in the order of the graph."""
    return place_in_order(problem, problem.order, insertion=False)
