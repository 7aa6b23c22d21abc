"""Auto: the best of all policies by simulation, then made better while the budget lasts.

    single, heft, fcp, ... --simulate--> the best --search--> schedule

Policies come in the order of what they give for what they take, and as long as a share of the
budget lasts; the first two always. A budget of 0 seconds gives the better of these two.

Complexity: that of the budget, and of two policies. Examples: tests/schedule/test_auto.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from .bounds import path_bound, pinned_bound
from .improve.loads import spread
from .improve.search import search
from .improve.steps import PER_S, steps_of
from .memory import respecting_memory
from .objectives import OBJECTIVES
from .policies import POLICIES, fastest, single
from .problem import Problem
from .simulate import Placed, simulate

ORDER = (
    "heft",
    "mct",
    "lookahead",
    "cpop",
    "peft",
    "dls",
    "etf",
    "sufferage",
    "min-min",
    "max-min",
    "fcp",
    "flb",
    "priority",
)
"""Policies after `single`, those that earn most first."""
SINGLES = 8
"""Single devices that are tried where not every device can do everything."""
SHARE = 0.35
"""The part of the budget that policies may take."""


def best_of_all(problem: Problem, objective: str, budget_s: float, seed: int) -> tuple[str, Placed]:
    """Returns the best schedule found, and the name of the policy that it began with."""
    total = budget_s * PER_S
    found, steps = _portfolio(problem, objective, total * SHARE)
    bound = _bound(problem, objective)
    steps += problem.n + problem.edges * 5.0
    value, name, placed = found
    improve = spread if objective == "throughput" else search
    if steps < total and value > bound:
        better = improve(problem, placed, total - steps, bound, random.Random(seed))
        if better != placed:
            return f"{name}, improved", better
    return name, placed


def _bound(problem: Problem, objective: str) -> float:
    least = pinned_bound(problem) if problem.n else 0.0
    return max(least, path_bound(problem)) if objective == "latency" and problem.n else least


def _portfolio(
    problem: Problem, objective: str, steps: float
) -> tuple[tuple[float, str, Placed], float]:
    """Returns the value, name and schedule of the best policy, and the steps taken by all."""
    taken, best = 0.0, None
    for name, policy, cost in _policies(problem):
        if best is not None and name != "heft" and taken + cost > steps:
            continue
        placed = respecting_memory(problem, policy)
        value = OBJECTIVES[objective](problem, placed, simulate(problem, placed))
        taken += cost + problem.n + 0.3 * problem.edges
        if best is None or value < best[0]:
            best = value, name, placed
    assert best is not None
    return best, taken


def _policies(problem: Problem) -> list[tuple[str, Callable[[Problem], Placed], float]]:
    names = problem.where.devices
    alone = fastest(problem)[:SINGLES]
    if problem.n * problem.m == sum(map(len, problem.able)) and not problem.limited:
        del alone[1:]  # with everything on one device, the least work is the best
    out: list[tuple[str, Callable[[Problem], Placed], float]] = [
        (f"single:{names[d]}", partial(single, device=d), steps_of("single", problem))
        for d in alone
    ]
    out += [(name, POLICIES[name], steps_of(name, problem)) for name in ORDER]
    return out
