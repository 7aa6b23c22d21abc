"""Loads: minimization of the largest load of a device, for the throughput of a stream.

    p0 |aaaaa|bb|      a task of the fullest device moves to the device that makes the larger
    p1 |cc|            of both loads smallest; if none helps, two tasks swap devices

Source: the jump and swap neighbourhoods of makespan on unrelated machines; Glass, Potts, Shade,
"Unrelated parallel machine scheduling using local search", Mathematical and Computer Modelling
20(2), 1994.
Complexity: tasks of the fullest device * devices for each move, by numpy. Examples:
tests/schedule/test_improve.py.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from ..model.objectives import throughput
from ..model.problem import INFINITY, Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import TaskPlacement, Times

KICK = 4
"""Maximum number of tasks that a kick moves."""


class Loads:
    """A device for each task, and the load of each device."""

    def __init__(self, problem: Problem, device: list[int]) -> None:
        self.problem = problem
        self.device = np.array(device, dtype=np.intp)
        self._cost = problem.rows
        self._kind = np.array(problem.kind, dtype=np.intp)
        self._size = np.array(problem.size, dtype=np.float64)
        self.steps = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Recompute loads and free memory."""
        m = self.problem.m
        own = self._cost[self._kind, self.device]
        self.load = np.bincount(self.device, own, m).astype(np.float64)
        used = np.bincount(self.device, self._size, m)
        self.room = np.array(self.problem.room) - used

    def allowed(self, tasks: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return seconds by task and device, or infinity if the task cannot run there."""
        cost = self._cost[self._kind[tasks]]
        if self.problem.limited:
            full = self._size[tasks][:, None] > self.room
            cost = np.where(full & (self._size[tasks] > 0)[:, None], INFINITY, cost)
        return cost

    def put(self, t: int, d: int) -> None:
        """Move a task to a device."""
        home, row = int(self.device[t]), self._cost[self._kind[t]]
        self.load[home] -= row[home]
        self.load[d] += row[d]
        self.room[home] += self._size[t]
        self.room[d] -= self._size[t]
        self.device[t] = d

    def jump(self) -> bool:
        """Move the best task away from the fullest device, and return True if that is an
        improvement.
        """
        top = int(self.load.argmax())
        tasks = np.nonzero(self.device == top)[0]
        cost = self.allowed(tasks)
        self.steps += 40.0 + 0.01 * cost.size
        after = self.load + cost
        after[:, top] = INFINITY
        least = self.load[top] - self._cost[self._kind[tasks], top]
        both = np.maximum(after, least[:, None])
        if not both.size:
            return False
        at, d = divmod(int(both.argmin()), self.problem.m)
        if both[at, d] >= self.load[top] * (1 - 1e-12):
            return False
        self.put(int(tasks[at]), d)
        return True

    def swap(self, rng: random.Random) -> bool:
        """Swap a task of the fullest device with another one, if that is an improvement."""
        top = int(self.load.argmax())
        tasks = np.nonzero(self.device == top)[0]
        if not tasks.size:  # no task takes any time, only transfers do
            return False
        t = int(rng.choice(tasks.tolist()))
        row = self._cost[self._kind[t]]
        other = self._cost[self._kind, top]
        homes = self.device
        here = self.load[top] - row[top] + other
        there = self.load[homes] - self._cost[self._kind, homes] + row[homes]
        both = np.where(homes == top, INFINITY, np.maximum(here, there))
        if self.problem.limited:
            tight = (self.room[homes] + self._size < self._size[t]) | (
                self.room[top] + self._size[t] < self._size
            )
            both = np.where(tight, INFINITY, both)
        self.steps += 60.0 + 0.05 * self.problem.n
        w = int(both.argmin())
        if both[w] >= self.load[top] * (1 - 1e-12):
            return False
        d = int(homes[w])
        self.put(t, d)
        self.put(w, top)
        return True

    def shake(self, rng: random.Random) -> None:
        """Move a few tasks to other devices."""
        for _ in range(rng.randint(1, KICK)):
            t = rng.randrange(self.problem.n)
            row = self.allowed(np.array([t]))[0]
            fits = [d for d in self.problem.candidate_devices[t] if row[d] < INFINITY]
            if fits:
                self.put(t, rng.choice(fits))
        self.steps += 20.0 * KICK


def spread(
    problem: Problem, placed: TaskPlacement, steps: float, bound: float, rng: random.Random
) -> TaskPlacement:
    """Return the schedule with the least period found."""
    order = by_rank(problem, upward(problem))
    loads = Loads(problem, placed.device)

    def value() -> float:
        if not problem.exclusive:
            return float(loads.load.max())
        loads.steps += problem.n + problem.edges
        return throughput(problem, TaskPlacement(loads.device.tolist(), order), Times([], [], {}))

    best, found = value(), loads.device.copy()
    now, at = best, found.copy()
    first = True
    while loads.steps < steps and best > bound * (1 + 1e-9):
        if not first:
            loads.shake(rng)
        first = False
        while loads.steps < steps and (
            loads.jump() or any(loads.swap(rng) for _ in range(6) if loads.steps < steps)
        ):
            pass
        new = value()
        if new <= now * 1.002:
            now, at = new, loads.device.copy()
        else:
            loads.device = at.copy()
            loads.refresh()
        if new < best * (1 - 1e-12):
            best, found = new, loads.device.copy()
    return TaskPlacement(found.tolist(), order)
