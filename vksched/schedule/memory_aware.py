"""Memory-aware scheduling, for devices that cannot hold all tasks.

    a policy ends in a dead end  -->  tasks with memory are placed first, large ones first, and
                                      the policy runs again with these tasks bound

Placing sizes into devices is bin packing: a bounded search may miss an existing placement if memory
is very tight.

Complexity: tasks * devices, twice the policy. Examples: tests/schedule/test_schedule_memory.py.
"""

from __future__ import annotations

from collections.abc import Callable

from ..common.errors import PlanError
from .model.partial_schedule import DeadEnd
from .model.problem import Problem
from .model.simulate_tasks import TaskPlacement


def respecting_memory(
    problem: Problem, policy: Callable[[Problem], TaskPlacement]
) -> TaskPlacement:
    """Return a policy's schedule within the memory limits.

    Raises
    ------
    PlanError
        No placement was found that fits.
    """
    try:
        return policy(problem)
    except DeadEnd:
        return policy(problem.only(fit(problem)))


def fit(problem: Problem) -> dict[int, int]:
    """Return a device for each task with memory, within the limits: tasks with a single device
    first, then large ones.

    Each task goes to the device with the least seconds relative to its free memory. If that fails,
    all go to the device with the most free memory, and if that fails too, to the tightest one that
    fits.

    Raises
    ------
    PlanError
        None of the three rules found a placement.
    """
    heavy = [t for t, size in enumerate(problem.size) if size]
    heavy.sort(key=lambda t: (len(problem.candidate_devices[t]) > 1, -problem.size[t], t))
    for rule in (_by_seconds, _by_room, _tightest):
        found = _try(problem, heavy, rule)
        if found is not None:
            return found
    most = sum(problem.size)
    raise PlanError(
        f"[schedule] expected devices with room for {most} bytes of {len(heavy)} tasks, found no "
        f"placement in {dict(problem.where.memory_bytes)}; try more memory_bytes, or smaller tasks"
    )


Rule = Callable[[Problem, int, int, list[float]], float]


def _by_seconds(problem: Problem, t: int, d: int, room: list[float]) -> float:
    return problem.cost[t][d] / max(room[d], 1.0) if room[d] < float("inf") else 0.0


def _by_room(problem: Problem, t: int, d: int, room: list[float]) -> float:
    return -room[d]


def _tightest(problem: Problem, t: int, d: int, room: list[float]) -> float:
    return room[d]


def _try(problem: Problem, heavy: list[int], rule: Rule) -> dict[int, int] | None:
    room, out = list(problem.room), dict[int, int]()
    for t in heavy:
        fits = [d for d in problem.candidate_devices[t] if problem.size[t] <= room[d]]
        if not fits:
            return None
        d = min(fits, key=lambda d: (rule(problem, t, d, room), problem.cost[t][d], d))
        out[t] = d
        room[d] -= problem.size[t]
    return out
