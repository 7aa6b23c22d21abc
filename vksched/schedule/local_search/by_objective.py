"""Local search by objective: schedules for memory, energy and mixes.

Problem: the longest path through a task does not bound the bytes of a device, or joules. Method:
initial schedules that are good for one of both, followed by steps. A step moves a block of
connected tasks to another device, or swaps the devices of two tasks. It is accepted if a full
simulation gives no worse value.

    memory   large tasks first, each to the device with the least bytes so far; the others by HEFT
    energy   each task to the device with the least watts times seconds

Complexity: tasks + edges for each step, within the budget. Examples:
tests/schedule/test_schedule_objectives.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ..model.partial_schedule import DeadEnd
from ..model.problem import Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import TaskPlacement
from ..policies.heft import heft

BLOCKS = (1, 1, 1, 2, 3, 5)
"""Sizes of blocks."""
SWAP = 0.3
"""Probability that a step swaps the devices of two tasks."""
IDLE, IDLE_EACH = 400, 4
"""Steps without gain after which the search ends: the first number, or the second for each task."""


def balanced_memory(problem: Problem) -> TaskPlacement:
    """Return a schedule with balanced memory of devices."""
    held = [0.0] * problem.m
    chosen: dict[int, int] = {}
    heavy = [t for t in range(problem.n) if problem.size[t]]
    for t in sorted(
        heavy, key=lambda t: (len(problem.candidate_devices[t]) > 1, -problem.size[t], t)
    ):
        fits = [
            d for d in problem.candidate_devices[t] if held[d] + problem.size[t] <= problem.room[d]
        ]
        if not fits and len(problem.candidate_devices[t]) > 1:
            raise DeadEnd
        d = min(
            fits or problem.candidate_devices[t], key=lambda d: (held[d], problem.cost[t][d], d)
        )
        held[d] += problem.size[t]
        chosen[t] = d
    return heft(problem.only(chosen))


def least_energy(problem: Problem) -> TaskPlacement:
    """Return a schedule in which each task takes the least energy, within the memory limits."""
    watts = problem.where.watts
    more = [watts[name].more if name in watts else 0.0 for name in problem.where.devices]
    chosen = {
        t: min(devices, key=lambda d, t=t: (more[d] * problem.cost[t][d], problem.cost[t][d], d))  # type: ignore[misc]
        for t, devices in enumerate(problem.candidate_devices)
        if not (problem.limited and problem.size[t])
    }
    return heft(problem.only(chosen))


STARTS: tuple[tuple[str, Callable[[Problem], TaskPlacement]], ...] = (
    ("memory", balanced_memory),
    ("energy", least_energy),
)
"""For each objective, its initial schedule."""


def descend(
    problem: Problem,
    placed: TaskPlacement,
    steps: float,
    value: Callable[[TaskPlacement], float],
    rng: random.Random,
) -> TaskPlacement:
    """Return the schedule with the least value found."""
    order = by_rank(problem, upward(problem))
    free = [t for t in range(problem.n) if len(problem.candidate_devices[t]) > 1]
    best, found = value(placed), placed
    again = TaskPlacement(list(placed.device), order)
    now = value(again)
    if now < best:
        best, found = now, again
    device, each = list(placed.device), 20.0 + problem.n + 0.5 * problem.edges
    taken, idle, most = 2 * each, 0, max(IDLE, IDLE_EACH * problem.n)
    while free and taken < steps and idle < most:
        taken += each
        idle += 1
        other = _moved(problem, device, free, rng)
        if other is None:
            continue
        judged = value(TaskPlacement(other, order))
        if judged <= now:
            idle = 0 if judged < now * (1 - 1e-9) else idle
            now, device = judged, other
            if now < best * (1 - 1e-12):
                best, found = now, TaskPlacement(list(device), order)
    return found


def _moved(
    problem: Problem, device: list[int], free: list[int], rng: random.Random
) -> list[int] | None:
    """Return other devices for a few tasks, or None if they do not fit."""
    out = list(device)
    t = rng.choice(free)
    if rng.random() < SWAP:
        other = rng.choice(free)
        if (
            device[other] not in problem.candidate_devices[t]
            or device[t] not in problem.candidate_devices[other]
        ):
            return None
        out[t], out[other] = device[other], device[t]
    else:
        target = rng.choice(problem.candidate_devices[t])
        block, size = [t], rng.choice(BLOCKS)
        for at in block:
            around = [n for n, _ in (*problem.before[at], *problem.after[at])]
            more = [n for n in around if target in problem.candidate_devices[n] and n not in block]
            block += more[: size - len(block)]
        for at in block:
            out[at] = target
    if out == device or not _fits(problem, out):
        return None
    return out


def _fits(problem: Problem, device: list[int]) -> bool:
    if not problem.limited:
        return True
    room = list(problem.room)
    for t, d in enumerate(device):
        room[d] -= problem.size[t]
    return min(room) >= 0
