"""Single: all tasks on one device; unsupported tasks where they end first.

Source: the baseline of all other policies.
Complexity: tasks * devices. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import Partial
from ..model.problem import Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import TaskPlacement


def single(problem: Problem, device: int) -> TaskPlacement:
    """Return the schedule with all tasks on one device."""
    partial = Partial(problem)
    for t in by_rank(problem, upward(problem)):
        if device in partial.devices(t):
            partial.put(t, device)
        else:
            partial.place(t, *partial.choose(t))
    return partial.done()


def fastest(problem: Problem) -> list[int]:
    """Return all devices in descending order of supported tasks, then in ascending order of
    work.
    """
    can, work = [0] * problem.m, [0.0] * problem.m
    for t, devices in enumerate(problem.candidate_devices):
        cost = problem.cost[t]
        for d in devices:
            can[d] += 1
            work[d] += cost[d]
    return sorted(range(problem.m), key=lambda d: (-can[d], work[d], d))
