"""Auto: the best of all policies by simulation, improved by local search within a time budget.

    single, heft, fcp, ... --simulate--> the best --search--> schedule

Policies run in the order of their gain per cost, until they have used a share of the budget; the
first two always run. With a budget of 0 seconds, the result is the better one of these two. `heft`
runs with several ranks, because it is cheap, and each rank is the best for some graphs.

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
from .model.simulate_tasks import TaskPlacement, simulate
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
"""Policies after `single`, in descending order of gain."""
RANKS_AFTER = "mct"
"""The policy after which `heft` runs again with other ranks."""
MAX_SINGLES = 8
"""Maximum number of single devices that are tried if some devices do not support all tasks."""
POLICY_SHARE = 0.35
"""Maximum share of the budget for policies."""


def best_of_all(
    problem: Problem, objective: Objective, budget_s: float, seed: int
) -> tuple[str, TaskPlacement, dict[str, float]]:
    """Return the best schedule, the name of the policy that it started from, and the reference of a
    mix: the least value of each objective over all policies.
    """
    total = budget_s * PER_S
    found, least, steps = _portfolio(problem, objective, total * POLICY_SHARE)
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
    problem: Problem, objective: Objective, least: dict[str, float], placed: TaskPlacement
) -> float:
    words = [word for word, _ in objective.weights]
    return objective.value(values_of(problem, placed, simulate(problem, placed), words), least)


def _portfolio(
    problem: Problem, objective: Objective, steps: float
) -> tuple[tuple[float, str, TaskPlacement], dict[str, float], float]:
    """Return the value, name and schedule of the best policy, the least value of each objective
    over all policies, and the total number of steps.
    """
    words = [word for word, _ in objective.weights]
    taken, found = 0.0, list[tuple[dict[str, float], str, TaskPlacement]]()
    always = {"heft"}  # the first policy with this name
    for name, policy, cost in _policies(problem, words):
        if found and name not in always and taken + cost > steps:
            continue
        always.discard(name)
        placed = respecting_memory(problem, policy)
        values = values_of(problem, placed, simulate(problem, placed), words)
        taken += cost + problem.n + 0.3 * problem.edges
        if objective.word and found and values[words[0]] >= found[0][0][words[0]]:
            continue
        # a mix needs all of them, because its reference is known at the end
        found = [(values, name, placed)] if objective.word else [*found, (values, name, placed)]
    least = least_of(values for values, _, _ in found)
    valued = [(objective.value(values, least), name, placed) for values, name, placed in found]
    return min(valued, key=lambda each: each[0]), least, taken


def _policies(
    problem: Problem, words: list[str]
) -> list[tuple[str, Callable[[Problem], TaskPlacement], float]]:
    names = problem.where.devices
    alone = fastest(problem)[:MAX_SINGLES]
    if problem.n * problem.m == sum(map(len, problem.candidate_devices)) and not problem.limited:
        del alone[1:]  # with all tasks on one device, the least work is the best
    out: list[tuple[str, Callable[[Problem], TaskPlacement], float]] = [
        (f"single:{names[d]}", partial(single, device=d), steps_of("single", problem))
        for d in alone
    ]
    out += [(name, start, steps_of("heft", problem)) for name, start in STARTS if name in words]
    for name in ORDER:
        out.append((name, POLICIES[name], steps_of(name, problem)))
        if name == RANKS_AFTER:
            cost = steps_of("heft", problem)
            out += [("heft", partial(heft, by=rank), cost) for rank in OTHER_RANKS]
    return out
