"""Fast critical path: the most urgent ready task, on the better of two devices.

    enabling device: the source of its last data     idle device: the first device to become free

Source: Radulescu, van Gemund, "Low-cost task scheduling for distributed-memory machines", IEEE TPDS
13(6), 2002. Devices are heterogeneous here, so the two are compared by end instead of start.
Complexity: (tasks + edges) * log of tasks. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import Partial
from ..model.problem import Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import TaskPlacement
from .idle import Idle


def fcp(problem: Problem) -> TaskPlacement:
    """Return the schedule of fast critical path."""
    partial = Partial(problem)
    idle = Idle(problem.m)
    for t in by_rank(problem, upward(problem)):
        place_fast(partial, idle, t)
    return partial.done()


def place_fast(partial: Partial, idle: Idle, t: int) -> None:
    """Place a task on its enabling device or on an idle one, where it ends first.

    If it can run on neither, all its devices are compared.
    """
    cost, fit = partial.problem.cost[t], partial.devices(t)
    near = {idle.first(), enabling(partial, t)} & set(fit) if len(fit) > 1 else set(fit)
    if near:
        starts = {d: start_on(partial, t, d) for d in sorted(near)}
        d = min(starts, key=lambda d: (starts[d] + cost[d], d))
        partial.place(t, d, starts[d])
    else:
        d, start = partial.choose(t)
        partial.place(t, d, start)
    idle.busy(d, partial.free[d])


def enabling(partial: Partial, t: int) -> int:
    """Return the source device of a task's last data, or -1 if it needs none."""
    latency, each = partial.problem.mean_link
    last, found = -1.0, -1
    for p, size in partial.problem.before[t]:
        at = partial.finish[p] + latency + size * each
        if at > last:
            last, found = at, partial.device[p]
    return found


def start_on(partial: Partial, t: int, d: int) -> float:
    """Return the earliest start of a task on a device, without waiting times of transfers."""
    problem, ready = partial.problem, partial.free[d]
    for p, size in problem.before[t]:
        s = partial.device[p]
        at = partial.finish[p]
        if s != d:
            at += problem.latency[s][d] + size * problem.inverse[s][d]
        if at > ready:
            ready = at
    return ready
