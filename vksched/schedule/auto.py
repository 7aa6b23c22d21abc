"""Auto: the best of all policies by simulation, then made better while the budget lasts.

    single, heft, fcp, ... --simulate--> the best few --descent--> the best --search--> schedule

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
    "fcp",
    "cpop",
    "peft",
    "dls",
    "etf",
    "sufferage",
    "min-min",
    "max-min",
    "lookahead",
    "flb",
    "priority",
)
"""Policies after `single`, those that earn most first."""
SHARE = 0.35
"""The part of the budget that policies may take."""
STARTS = 3
"""Schedules that the search begins with; a sixth of what is left goes into each but the best."""


def best_of_all(problem: Problem, objective: str, budget_s: float, seed: int) -> tuple[str, Placed]:
    """Returns the best schedule found, and the name of the policy that it began with."""
    total = budget_s * PER_S
    found, steps = _portfolio(problem, objective, total * SHARE)
    bound = _bound(problem, objective)
    steps += problem.n + problem.edges * 5.0
    rng = random.Random(seed)
    improve = spread if objective == "throughput" else search
    best = found[0]
    starts = found[:STARTS]
    for at, (value, name, placed) in enumerate(starts[1:] + starts[:1]):
        left = total - steps
        if left <= 0 or best[0] <= bound * (1 + 1e-9):
            break
        last = at == len(starts) - 1
        if last:
            value, name, placed = best
        value, placed, took = improve(problem, placed, left if last else left / 6, bound, rng)
        steps += took
        if value < best[0]:
            best = value, name, placed
    return best[1], best[2]


def _bound(problem: Problem, objective: str) -> float:
    least = pinned_bound(problem) if problem.n else 0.0
    return max(least, path_bound(problem)) if objective == "latency" and problem.n else least


def _portfolio(
    problem: Problem, objective: str, steps: float
) -> tuple[list[tuple[float, str, Placed]], float]:
    """Returns schedules of policies, the best first and no two alike, and the steps taken."""
    taken, out = 0.0, dict[float, tuple[float, str, Placed]]()
    for name, policy, cost in _policies(problem):
        if taken + cost > steps and len(out) > 0 and name not in ("heft",):
            continue
        placed = respecting_memory(problem, policy)
        value = OBJECTIVES[objective](problem, placed, simulate(problem, placed))
        taken += cost + problem.n + 0.3 * problem.edges
        out.setdefault(value, (value, name, placed))
    return [out[value] for value in sorted(out)], taken


def _policies(problem: Problem) -> list[tuple[str, Callable[[Problem], Placed], float]]:
    names = problem.where.devices
    device = fastest(problem)
    whole = all(device in devices for devices in problem.able)
    alone = [device] if whole else list(range(min(problem.m, 8)))
    out: list[tuple[str, Callable[[Problem], Placed], float]] = [
        (f"single:{names[d]}", partial(single, device=d), steps_of("single", problem))
        for d in alone
    ]
    out += [(name, POLICIES[name], steps_of(name, problem)) for name in ORDER]
    return out
