"""Auto: the best of all policies by simulation, then made better while the budget lasts.

    single, heft, fcp, ... --simulate--> the best --search--> schedule

Policies come in the order of what they give for what they take, and as long as a share of the
budget lasts; the first two always. A budget of 0 seconds gives the better of these two. `heft` is
asked by several ranks, for it is cheap, and each rank is best somewhere.

Complexity: that of the budget, and of two policies. Examples: tests/schedule/test_make.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from .local_search.annealing import search
from .local_search.by_objective import STARTS, descend
from .local_search.loads import spread
from .local_search.step_budget import PER_S, steps_of
from .memory_aware import respecting_memory
from .model.lower_bounds import path_bound, pinned_bound
from .model.objectives import Objective, least_of, values_of
from .model.problem import Problem
from .model.simulate_tasks import Placed, simulate
from .policies import POLICIES, fastest, heft, single
from .policies.heft import OTHER_RANKS

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
AFTER = "mct"
"""The policy behind which `heft` comes again, by other ranks."""
SINGLES = 8
"""Single devices that are tried where not every device can do everything."""
SHARE = 0.35
"""The part of the budget that policies may take."""


def best_of_all(
    problem: Problem, objective: Objective, budget_s: float, seed: int
) -> tuple[str, Placed, dict[str, float]]:
    """Return the best schedule found, the name of the policy that it began with, and what a mix is
    relative to: the least of each of its words over all policies.
    """
    total = budget_s * PER_S
    found, least, steps = _portfolio(problem, objective, total * SHARE)
    bound = _bound(problem, objective)
    steps += problem.n + problem.edges * 5.0
    value, name, placed = found
    if steps < total and value > bound:
        rng, left = random.Random(seed), total - steps
        if objective.word in ("latency", "throughput"):
            improve = spread if objective.word == "throughput" else search
            better = improve(problem, placed, left, bound, rng)
        else:
            better = descend(problem, placed, left, partial(_value, problem, objective, least), rng)
        if better != placed:
            return f"{name}, improved", better, least
    return name, placed, least


def _bound(problem: Problem, objective: Objective) -> float:
    if not problem.n or objective.word not in ("latency", "throughput"):
        return 0.0
    least = pinned_bound(problem)
    return max(least, path_bound(problem)) if objective.word == "latency" else least


def _value(
    problem: Problem, objective: Objective, least: dict[str, float], placed: Placed
) -> float:
    words = [word for word, _ in objective.weights]
    return objective.value(values_of(problem, placed, simulate(problem, placed), words), least)


def _portfolio(
    problem: Problem, objective: Objective, steps: float
) -> tuple[tuple[float, str, Placed], dict[str, float], float]:
    """Return the value, name and schedule of the best policy, the least value of each word over
    all policies, and the steps taken by all.
    """
    words = [word for word, _ in objective.weights]
    taken, found = 0.0, list[tuple[dict[str, float], str, Placed]]()
    always = {"heft"}  # the first of that name
    for name, policy, cost in _policies(problem, words):
        if found and name not in always and taken + cost > steps:
            continue
        always.discard(name)
        placed = respecting_memory(problem, policy)
        values = values_of(problem, placed, simulate(problem, placed), words)
        taken += cost + problem.n + 0.3 * problem.edges
        if objective.word and found and values[words[0]] >= found[0][0][words[0]]:
            continue
        # of a mix all are kept, as what it is relative to is known at the end
        found = [(values, name, placed)] if objective.word else [*found, (values, name, placed)]
    least = least_of(values for values, _, _ in found)
    valued = [(objective.value(values, least), name, placed) for values, name, placed in found]
    return min(valued, key=lambda each: each[0]), least, taken


def _policies(
    problem: Problem, words: list[str]
) -> list[tuple[str, Callable[[Problem], Placed], float]]:
    names = problem.where.devices
    alone = fastest(problem)[:SINGLES]
    if problem.n * problem.m == sum(map(len, problem.candidate_devices)) and not problem.limited:
        del alone[1:]  # with everything on one device, the least work is the best
    out: list[tuple[str, Callable[[Problem], Placed], float]] = [
        (f"single:{names[d]}", partial(single, device=d), steps_of("single", problem))
        for d in alone
    ]
    out += [(name, start, steps_of("heft", problem)) for name, start in STARTS if name in words]
    for name in ORDER:
        out.append((name, POLICIES[name], steps_of(name, problem)))
        if name == AFTER:
            cost = steps_of("heft", problem)
            out += [("heft", partial(heft, by=rank), cost) for rank in OTHER_RANKS]
    return out
