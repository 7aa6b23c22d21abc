"""Auto: the best of all policies by simulation.

Complexity: that of the policies together. Examples: tests/schedule/test_auto.py.
"""

from __future__ import annotations

from .bounds import find_bounds
from .memory import respecting_memory
from .objectives import OBJECTIVES
from .policies import POLICIES, fastest, single
from .problem import Problem
from .simulate import Placed, simulate


def best_of_all(problem: Problem, objective: str, budget_s: float, seed: int) -> tuple[str, Placed]:
    """Returns the best schedule found, and the name of the policy that it began with."""
    device = fastest(problem)
    candidates = {
        f"single:{problem.where.devices[device]}": lambda p: single(p, device),
        **POLICIES,
    }
    bound = find_bounds(problem, objective, linear=False).value_s
    best: tuple[float, str, Placed] | None = None
    for name, policy in candidates.items():
        placed = respecting_memory(problem, policy)
        value = OBJECTIVES[objective](problem, placed, simulate(problem, placed))
        if best is None or value < best[0]:
            best = value, name, placed
        if best[0] <= bound * (1 + 1e-9):
            break
    assert best is not None
    return best[1], best[2]
