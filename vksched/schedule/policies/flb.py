"""Fast load balancing: the ready task that can start first, found among few candidates.

    tasks whose last data arrives after their enabling device is free: start there, a heap each
    all others: start on the first idle device, one heap by the arrival of the last data

Source: Radulescu, van Gemund, "Low-cost task scheduling for distributed-memory machines", IEEE TPDS
13(6), 2002. Devices are heterogeneous here, so the task is placed on the one of both devices where
it ends first.
Complexity: (tasks + edges) * (log of tasks + log of devices). Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

import heapq

from ..model.partial_schedule import Partial
from ..model.problem import Problem
from ..model.ranks import levels
from ..model.simulate_tasks import TaskPlacement
from .fcp import enabling, place_fast, start_on
from .idle import Idle


def flb(problem: Problem) -> TaskPlacement:
    """Return the schedule of fast load balancing."""
    partial, idle = Partial(problem), Idle(problem.m)
    level = levels(problem)
    latency, each = problem.mean_link
    waits = [len(arcs) for arcs in problem.before]
    bound: list[tuple[float, float, int]] = []  # start on the enabling device, level, task
    loose: list[tuple[float, float, int]] = []  # arrival of the last data, level, task
    home = [-1] * problem.n
    last = [0.0] * problem.n

    def enter(t: int) -> None:
        home[t] = enabling(partial, t)
        last[t] = max(
            (partial.finish[p] + latency + size * each for p, size in problem.before[t]),
            default=0.0,
        )
        if home[t] >= 0 and last[t] >= partial.free[home[t]]:
            heapq.heappush(bound, (start_on(partial, t, home[t]), -level[t], t))
        else:
            heapq.heappush(loose, (last[t], -level[t], t))

    for t in problem.order:
        if not waits[t]:
            enter(t)
    while bound or loose:
        while bound:  # correct entries whose device was taken meanwhile
            start, rank, t = bound[0]
            now = start_on(partial, t, home[t])
            if last[t] < partial.free[home[t]]:
                heapq.heappop(bound)
                heapq.heappush(loose, (last[t], rank, t))
            elif now > start:
                heapq.heapreplace(bound, (now, rank, t))
            else:
                break
        early = bound[0][0] if bound else float("inf")
        late = max(loose[0][0], partial.free[idle.first()]) if loose else float("inf")
        _, _, t = heapq.heappop(loose if late <= early and loose else bound)
        place_fast(partial, idle, t)
        for c, _size in problem.after[t]:
            waits[c] -= 1
            if not waits[c]:
                enter(c)
    return partial.done()
