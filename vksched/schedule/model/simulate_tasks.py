"""Task simulation: the times of an assignment in which each device runs its tasks in a fixed order.

    order   a b c d        p0 |aaa|   |ccc|
    device  0 1 0 1        p1     |bb|     |dd|     b waits for a transfer from a

A task starts as soon as its device is free and its data has arrived. A transfer starts at the end
of its producer. With exclusive links, a channel serves transfers in the order in which producers
end; for equal times, by the positions of the producers, and then of their consumers, in the order.

Complexity: tasks + edges; with exclusive links times the logarithm of both. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from .problem import Problem


@dataclass(slots=True)
class TaskPlacement:
    """The result of a policy: a device for each task, and an order of all tasks.

    order: producers before consumers. A device runs its tasks in this order.
    """

    device: list[int]
    order: list[int]


@dataclass(slots=True)
class Times:
    """The result of a simulation: seconds by task, and transfers by (producer, consumer)."""

    start: list[float]
    finish: list[float]
    transfers: dict[tuple[int, int], tuple[float, float]]
    """Start and end; empty unless links are exclusive."""

    @property
    def makespan(self) -> float:
        return max(self.finish, default=0.0)


def simulate(problem: Problem, placed: TaskPlacement) -> Times:
    """Return the start and the end of each task."""
    if problem.exclusive:
        return simulate_events(problem, placed)
    start, finish = [0.0] * problem.n, [0.0] * problem.n
    free = [0.0] * problem.m
    device, cost, before = placed.device, problem.cost, problem.before
    latency, inverse = problem.latency, problem.inverse
    for t in placed.order:
        d = device[t]
        ready = free[d]
        for p, size in before[t]:
            s = device[p]
            at = finish[p]
            if s != d:
                at += latency[s][d] + size * inverse[s][d]
            if at > ready:
                ready = at
        start[t] = ready
        free[d] = finish[t] = ready + cost[t][d]
    return Times(start, finish, {})


def simulate_events(problem: Problem, placed: TaskPlacement) -> Times:
    """Return the start and the end of each task, event by event, for both kinds of links."""
    n, m = problem.n, problem.m
    device, cost = placed.device, problem.cost
    queue: list[list[int]] = [[] for _ in range(m)]
    place = [0] * n
    for at, t in enumerate(placed.order):
        place[t] = at
        queue[device[t]].append(t)
    waits = [len(arcs) for arcs in problem.before]
    ready, start, finish = [0.0] * n, [0.0] * n, [0.0] * n
    served: dict[tuple[int, int], tuple[float, float]] = {}
    head, free = [0] * m, [0.0] * m
    channel_free: dict[int, float] = {}
    events: list[tuple[float, int, int]] = []  # end of a task, its position, the task

    def begin(d: int) -> None:
        """Start the next task of a device, if its data has arrived or is on the way."""
        while head[d] < len(queue[d]):
            t = queue[d][head[d]]
            if waits[t]:
                return
            head[d] += 1
            start[t] = max(free[d], ready[t])
            free[d] = finish[t] = start[t] + cost[t][d]
            heapq.heappush(events, (finish[t], place[t], t))

    for d in range(m):
        begin(d)
    while events:
        now, _, t = heapq.heappop(events)
        source, touched = device[t], {device[t]}
        for c, size in sorted(problem.after[t], key=lambda arc: place[arc[0]]):
            target = device[c]
            there = now
            if target != source:
                took = problem.transfer_s(size, source, target)
                begun = now
                if problem.exclusive:
                    channel = problem.channel[source][target]
                    begun = max(now, channel_free.get(channel, 0.0))
                    channel_free[channel] = begun + took
                there = begun + took
                served[t, c] = (begun, there)
            ready[c] = max(ready[c], there)
            waits[c] -= 1
            touched.add(target)
        for d in sorted(touched):
            begin(d)
    return Times(start, finish, served)
