"""Ranks: the urgency of each task, as the length of the paths after or before it.

    upward   = seconds of the task + the longest (transfer + upward) over its consumers
    downward = the longest (downward + seconds + transfer) over its producers

Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), 2002.
Complexity: tasks + edges. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .problem import Problem


def upward(
    problem: Problem,
    cost: Sequence[float] | None = None,
    link: tuple[float, float] | None = None,
) -> list[float]:
    """Return the upward rank of each task in seconds.

    cost: seconds by task; by default the mean over devices. link: latency and seconds per byte of
    every edge; by default the mean over pairs of devices.
    """
    cost = problem.mean if cost is None else cost
    latency, each = problem.mean_link if link is None else link
    rank = [0.0] * problem.n
    for t in reversed(problem.order):
        best = 0.0
        for c, size in problem.after[t]:
            found = rank[c] + latency + size * each
            if found > best:
                best = found
        rank[t] = best + cost[t]
    return rank


def downward(problem: Problem) -> list[float]:
    """Return the downward rank of each task in seconds, by means."""
    cost = problem.mean
    latency, each = problem.mean_link
    rank = [0.0] * problem.n
    for t in problem.order:
        best = 0.0
        for p, size in problem.before[t]:
            found = rank[p] + cost[p] + latency + size * each
            if found > best:
                best = found
        rank[t] = best
    return rank


def levels(problem: Problem) -> list[float]:
    """Return the static level of each task: the upward rank without transfers."""
    return upward(problem, link=(0.0, 0.0))


def by_rank(problem: Problem, rank: Sequence[float]) -> list[int]:
    """Return all tasks in descending order of rank, each after its producers."""
    waits = [len(arcs) for arcs in problem.before]
    heap = [(-rank[t], t) for t in problem.order if not waits[t]]
    heapq.heapify(heap)
    out: list[int] = []
    while heap:
        _, t = heapq.heappop(heap)
        out.append(t)
        for c, _size in problem.after[t]:
            waits[c] -= 1
            if not waits[c]:
                heapq.heappush(heap, (-rank[c], c))
    return out
