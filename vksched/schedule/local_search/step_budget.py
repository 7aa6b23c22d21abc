"""Step budget: a budget in seconds as a number of steps, so that equal seeds give equal plans.

A clock would stop the search earlier on a busy machine, and the plan would differ from run to run.
All parts of `auto` therefore count steps: one step is about a microsecond of Python on one core of
2.1 GHz. A faster machine needs less than the budget, a slower one more.

The numbers of policies were fitted to times of `benchmarks/schedules/schedules.py`, and need not be
exact. Examples: tests/schedule/test_improve.py.
"""

from __future__ import annotations

import math

from ..model.problem import Problem

PER_S = 1e6
"""Steps in a second of budget."""
EACH_S, MIN_S, MAX_S = 3e-4, 5e-3, 0.2
"""Budget by size: seconds per task, multiplied by the square root of the number of devices, and its
limits. Two devices allow as many partitions of a graph as many devices do, so the budget grows
slower with devices than with tasks.
"""
FEW, MORE = 40, 60
"""Up to the first number of tasks, the default budget is that of the second number of tasks more. A
search ends in a local optimum there, and the best known schedule was up to 12 % shorter without
this addition (benchmarks/schedules/schedules.py --judge). Beyond, the addition falls with the third
power, so that all instances of the benchmark take a fifth longer instead of twice as long.
"""


def default_budget(tasks: int, devices: int) -> float:
    """Return the default budget of `auto` in seconds."""
    return budget_by_size(tasks + MORE * min(1.0, FEW / max(1, tasks)) ** 3, devices)


def budget_by_size(tasks: float, devices: int) -> float:
    """Return the budget in seconds if schedules of many graphs are needed, each quickly."""
    return min(MAX_S, max(MIN_S, EACH_S * tasks * math.sqrt(devices)))


def steps_of(name: str, problem: Problem) -> float:
    """Return the approximate number of steps of a policy."""
    n, m, arcs = problem.n, problem.m, problem.edges
    if name in ("etf", "dls", "min-min", "max-min", "sufferage"):
        ready = min(n / 4, 32 if m >= 64 else 256)
        return 19.0 * n + 0.05 * arcs * m + 0.002 * n * ready * m
    if name == "lookahead":
        return 10.0 * n + arcs * (3.0 + (0.9 + 0.1 * m) * min(m, 16))
    if name in ("fcp", "flb"):
        return 4.0 * n + 1.2 * arcs
    if name in ("priority", "single"):
        return 2.0 * n + 0.06 * arcs * m
    if name == "peft":
        return 5.0 * n + 2.0 * arcs + (0.2 * n + 0.06 * arcs) * m
    return 4.0 * n + 1.0 * arcs + (0.2 * n + 0.06 * arcs) * m
