"""Objectives: what a schedule is judged by, in seconds; less is better.

    latency      the makespan: from the first start to the last end
    throughput   the period of a stream: the largest load of a device, as each run can be on
                 another device at the same time; with exclusive links that of a link as well

A new objective is a function in `OBJECTIVES` and a field of `Schedule`; auto.py then compares
policies by it.

Complexity: tasks + edges. Examples: tests/schedule/test_objectives.py.
"""

from __future__ import annotations

from collections.abc import Callable

from .problem import Problem
from .simulate import Placed, Times

Objective = Callable[[Problem, Placed, Times], float]


def latency(problem: Problem, placed: Placed, times: Times) -> float:
    """Returns the makespan."""
    return times.makespan


def throughput(problem: Problem, placed: Placed, times: Times) -> float:
    """Returns the period of a stream."""
    load = [0.0] * problem.m
    for t, d in enumerate(placed.device):
        load[d] += problem.cost[t][d]
    links: dict[int, float] = {}
    if problem.exclusive:
        for t, d in enumerate(placed.device):
            for p, size in problem.before[t]:
                s = placed.device[p]
                if s != d:
                    channel = problem.channel[s][d]
                    took = problem.transfer_s(size, s, d)
                    links[channel] = links.get(channel, 0.0) + took
    return max(*load, *links.values(), 0.0)


OBJECTIVES: dict[str, Objective] = {"latency": latency, "throughput": throughput}
