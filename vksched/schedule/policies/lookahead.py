"""Lookahead: HEFT that tries each device of a task, and compares the earliest ends of its
consumers.

Source: Bittencourt, Sakellariou, Madeira, "DAG scheduling using a lookahead variant of the
heterogeneous earliest finish time algorithm", Euromicro PDP, 2010.
Complexity: edges * devices squared; for a consumer, only its placed producers count. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import Partial
from ..model.problem import INFINITY, Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import TaskPlacement

CONSUMERS = 8
"""Maximum number of consumers that are considered, the most urgent ones."""
DEVICES = 16
"""Maximum number of devices that are tried for a task: the ones on which it ends first."""


def lookahead(problem: Problem) -> TaskPlacement:
    """Return the schedule of HEFT with a lookahead of one step."""
    rank = upward(problem)
    partial = Partial(problem, insertion=True)
    for t in by_rank(problem, rank):
        ready, cost = partial.arrivals(t), problem.cost[t]
        starts = [(partial.begin(t, d, ready[d]), d) for d in partial.devices(t)]
        ends = sorted((start + cost[d], d, start) for start, d in starts)[:DEVICES]
        heirs = sorted(problem.after[t], key=lambda arc: (-rank[arc[0]], arc[0]))[:CONSUMERS]
        known = [_known(partial, c) for c, _ in heirs]
        best, chosen = (INFINITY, INFINITY), ends[0]
        for end, d, start in ends:
            worst = end
            for (c, size), there in zip(heirs, known, strict=True):
                worst = max(worst, _least_end(partial, c, size, there, d, end))
            if (worst, end) < best:
                best, chosen = (worst, end), (end, d, start)
        partial.place(t, chosen[1], chosen[2])
    return partial.done()


def _known(partial: Partial, task: int) -> list[float]:
    """Return the arrival of the data of placed producers on each device."""
    problem = partial.problem
    ready = [0.0] * problem.m
    for p, size in problem.before[task]:
        s = partial.device[p]
        if s >= 0:
            at = partial.finish[p]
            for e, (late, each) in enumerate(
                zip(problem.latency[s], problem.inverse[s], strict=True)
            ):
                ready[e] = max(ready[e], at + late + size * each)
    return ready


def _least_end(
    partial: Partial, task: int, size: float, ready: list[float], source: int, end: float
) -> float:
    """Return the earliest end of a consumer if its producer ends on `source` at `end`."""
    problem, best = partial.problem, INFINITY
    late, each, cost = problem.latency[source], problem.inverse[source], problem.cost[task]
    for e in problem.candidate_devices[task]:
        at = max(end + late[e] + size * each[e], ready[e])
        if e == source and partial.free[e] > at:
            at = partial.free[e]
        found = partial.begin(task, e, at) + cost[e]
        if found < best:
            best = found
    return best
