"""Priority: the first device in order that can run a task and has memory for it.

Costs and transfers are ignored: this is the result for a list of devices by preference.
Source: vksched's first planner, docs/guides/plans.md.
Complexity: tasks * devices. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import Partial
from ..model.problem import Problem
from ..model.simulate_tasks import TaskPlacement


def priority(problem: Problem) -> TaskPlacement:
    """Return the schedule that fills devices in their order."""
    partial = Partial(problem)
    for t in problem.order:
        partial.put(t, partial.devices(t)[0])
    return partial.done()
