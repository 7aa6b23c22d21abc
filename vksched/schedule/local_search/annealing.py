"""Annealing: kicks and descents, by simulated annealing, within a budget.

    schedule --kick--> worse --descent--> a local optimum --accepted?--> schedule
                                                 '--- if shorter, or with a decreasing probability

At a few times the search returns to the best schedule so far.

A descent moves one critical task after another to its best slot, until no move shortens the longest
path through it. A kick moves a block of connected tasks to one device, or swaps the devices of two
tasks. Blocks matter if transfers are long, because each single task then stays with its neighbours.
Some kicks move a whole chain (see chains.py), to the best of a few devices.

With exclusive links the descent ignores the waiting time of transfers. Its result is evaluated by a
full simulation.

Sources: Lourenco, Martin, Stutzle, "Iterated local search", Handbook of Metaheuristics, 2003;
Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983.
Complexity: that of the budget. Examples: tests/schedule/test_improve.py.
"""

from __future__ import annotations

import math
import random

from ..model.problem import Problem
from ..model.simulate_tasks import TaskPlacement, simulate
from .reinsertion import Local

WARM = 0.005
"""The relative increase of the makespan that is accepted with probability 1/e at the start."""
CRITICAL, SWAP, NEAR = 0.7, 0.3, 0.3
"""Probabilities: a kick starts at a critical task, is a swap, goes to a neighbour's device."""
BLOCKS = (1, 1, 2, 3, 5, 8)
"""Sizes of blocks."""
CHAIN, TRIED = 0.5, 3
"""Probability that a kick moves a chain if there is one, and the number of devices it tries."""
RETURNS = (0.3, 0.5, 0.65, 0.8, 0.9)
"""Shares of the budget after which the search returns to the best schedule so far."""
TOLERANCE = 1e-9
"""Relative differences below this are rounding."""


def search(
    problem: Problem, placed: TaskPlacement, steps: float, bound: float, rng: random.Random
) -> TaskPlacement:
    """Return the schedule with the shortest makespan found.

    bound: the search ends when the makespan is not above it.
    """
    local = Local(problem, placed)
    best, found = measure(local), local.placed()
    descend(local, rng, steps)
    now = measure(local)
    if now < best:
        best, found = now, local.placed()
    elif problem.exclusive:
        local.load(found)
        now = best
    returns = list(RETURNS)
    while local.steps < steps and best > bound * (1 + TOLERANCE):
        if returns and local.steps > returns[0] * steps:
            del returns[0]
            if now > best:
                local.load(found)
                now = best
        before = local.placed()
        kick(local, rng)
        descend(local, rng, steps)
        value = measure(local)
        if value < best * (1 - TOLERANCE):
            best, found = value, local.placed()
        warm = WARM * (1 - local.steps / steps)
        worse = (value - now) / now
        if worse <= 0 or (warm > 0 and rng.random() < math.exp(-worse / warm)):
            now = value
        else:
            local.load(before)
    return found


def measure(local: Local) -> float:
    """Return the makespan, with the waiting time of transfers if links are exclusive."""
    if not local.problem.exclusive:
        return local.makespan
    local.steps += 3.0 * (local.problem.n + local.problem.edges)
    return simulate(local.problem, local.placed()).makespan


def descend(local: Local, rng: random.Random, steps: float) -> None:
    """Move critical tasks while that shortens a longest path.

    A task without an improving move is not tried again before a task near it has moved.
    """
    idle: set[int] = set()
    draw = rng.random
    while local.steps < steps:
        remaining = [v for v in local.critical() if v not in idle]
        remaining.sort(key=lambda _: draw())  # faster than shuffle
        for v in remaining:
            if local.move(v):
                idle.difference_update(t for t, _ in local.problem.before[v])
                idle.difference_update(t for t, _ in local.problem.after[v])
                break
            idle.add(v)
            if local.steps >= steps:
                return
        else:
            return


def kick(local: Local, rng: random.Random) -> None:
    """Move a chain or a block of tasks, or swap the devices of two tasks."""
    problem, device = local.problem, local.device
    if rng.random() < CRITICAL:
        v = rng.choice(local.critical())
    else:
        v = rng.randrange(problem.n)
    chain = local.chains.around(v, device) if rng.random() < CHAIN else []
    if len(chain) > 1:
        candidate_devices = [d for d in problem.candidate_devices[v] if d != device[v]] or [
            device[v]
        ]
        few = rng.sample(candidate_devices, min(TRIED, len(candidate_devices)))
        d = min(few, key=lambda d: local.trial(chain, d)) if len(few) > 1 else few[0]
        for t in chain:
            local.shift(t, d)
    elif rng.random() >= SWAP or not _swap(local, v, rng):
        near = [
            d
            for t, _ in problem.before[v] + problem.after[v]
            if (d := device[t]) != device[v] and problem.cost[v][d] < math.inf
        ]
        d = (
            rng.choice(near)
            if near and rng.random() < NEAR
            else rng.choice(problem.candidate_devices[v])
        )
        for t in _block(problem, v, rng.choice(BLOCKS), rng):
            local.shift(t, d)
    local.refresh(0, problem.n)


def _swap(local: Local, v: int, rng: random.Random) -> bool:
    d = local.device[v]
    for _ in range(8):
        w = rng.randrange(local.problem.n)
        e = local.device[w]
        if e != d and local.problem.cost[w][d] < math.inf and local.shift(v, e):
            local.shift(w, d)
            return True
    return False


def _block(problem: Problem, v: int, size: int, rng: random.Random) -> list[int]:
    """Return connected tasks around a task, adding at most two new ones for each."""
    block, known = [v], {v}
    for t in block:  # the list grows during the loop
        if len(block) >= size:
            break
        near = [o for o, _ in problem.before[t] + problem.after[t] if o not in known]
        for o in near if len(near) < 3 else rng.sample(near, 2):
            known.add(o)
            block.append(o)
    return block
