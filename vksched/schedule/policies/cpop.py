"""CPOP: the critical path on the device that runs it fastest, other tasks where they end first.

Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), 2002.
Complexity: edges * devices, times the gaps of partial_schedule.py. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import Partial
from ..model.problem import INFINITY, Problem
from ..model.ranks import by_rank, downward, upward
from ..model.simulate_tasks import TaskPlacement


def cpop(problem: Problem) -> TaskPlacement:
    """Return the schedule of CPOP with insertion."""
    up, down = upward(problem), downward(problem)
    rank = [a + b for a, b in zip(up, down, strict=True)]
    path = _path(problem, rank)
    on_path = set(path)
    work = [sum(problem.cost[t][d] for t in path) for d in range(problem.m)]
    home = min(range(problem.m), key=lambda d: (work[d], d))
    partial = Partial(problem, insertion=True)
    for t in by_rank(problem, rank):
        if t in on_path and work[home] < INFINITY and home in partial.devices(t):
            partial.put(t, home)
        else:
            partial.place(t, *partial.choose(t))
    return partial.done()


def _path(problem: Problem, rank: list[float]) -> list[int]:
    """Return a path of the highest rank, from a first task to a last one."""
    at = max((t for t in problem.order if not problem.before[t]), key=rank.__getitem__, default=-1)
    out: list[int] = []
    while at >= 0:
        out.append(at)
        at = max((c for c, _ in problem.after[at]), key=rank.__getitem__, default=-1)
    return out
