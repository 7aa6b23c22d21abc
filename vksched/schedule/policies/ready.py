"""Ready tasks: the loop of policies that pick a task and a device together among all ready tasks.

    ready tasks   p0   p1
         a         3    5    start of each task on each device; a policy adds its criterion,
         b         4    4    and picks one cell
         c         9    2

A step considers at most `WINDOW` ready tasks, the ones with the highest upward rank. Wide graphs of
100,000 tasks therefore stay affordable.

Complexity: tasks * WINDOW * devices at most, by numpy. Examples: tests/schedule/test_policies.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model.partial_schedule import DeadEnd, Partial
from ..model.problem import INFINITY, Problem
from ..model.ranks import levels, upward
from ..model.simulate_tasks import TaskPlacement

WINDOW = 256
WIDE_WINDOW = 32
"""The window with many devices, for which a row is long."""
Cells = NDArray[np.float64]


@dataclass(slots=True)
class Step:
    """The table of a step: rows are ready tasks, columns devices; infinity for impossible cells.

    level: the static level of each row. rest: for each row and column, the task's mean seconds
    minus its seconds on the device.
    """

    start: Cells
    finish: Cells
    level: NDArray[np.float64]
    rest: Cells


Pick = Callable[[Step], int]
"""A function that returns the number of a cell, in row-major order."""


def place_ready(problem: Problem, pick: Pick) -> TaskPlacement:
    """Return the schedule of a policy that picks cell after cell."""
    partial = Partial(problem)
    m = problem.m
    many = WINDOW if m < 64 else WIDE_WINDOW
    urgent, level = upward(problem), levels(problem)
    arrive, cost = np.zeros((many, m)), np.zeros((many, m))
    steady, rest = np.zeros(many), np.zeros((many, m))
    rows: list[int] = []
    waits = [len(arcs) for arcs in problem.before]
    heap = [(-urgent[t], t) for t in problem.order if not waits[t]]
    heapq.heapify(heap)
    free = np.zeros(m)
    while rows or heap:
        while heap and len(rows) < many:
            t, at = heapq.heappop(heap)[1], len(rows)
            rows.append(t)
            arrive[at] = partial.arrivals(t)
            cost[at] = INFINITY
            candidate_devices = list(partial.devices(t))
            cost[at, candidate_devices] = problem.rows[problem.kind[t], candidate_devices]
            steady[at] = level[t]
            rest[at] = problem.mean[t] - cost[at]
        used = len(rows)
        start = np.maximum(arrive[:used], free)
        finish = start + cost[:used]
        if problem.limited:
            _close(partial, rows, finish)
        start[finish == INFINITY] = INFINITY
        cell = pick(Step(start, finish, steady[:used], rest[:used]))
        at, d = divmod(cell, m)
        t = rows[at]
        free[d] = partial.place(t, d, float(start[at, d]))
        rows[at] = rows[-1]
        rows.pop()
        for table in (arrive, cost, steady, rest):
            table[at] = table[used - 1]
        for c, _size in problem.after[t]:
            waits[c] -= 1
            if not waits[c]:
                heapq.heappush(heap, (-urgent[c], c))
    return partial.done()


def _close(partial: Partial, rows: list[int], finish: Cells) -> None:
    """Close the cells of devices whose memory is full.

    Raises
    ------
    DeadEnd
        A task has no device left.
    """
    size = np.array([partial.problem.size[t] for t in rows], dtype=np.float64)
    several = np.array([len(partial.problem.candidate_devices[t]) > 1 for t in rows])
    full = (size[:, None] > np.array(partial.room)) & (several & (size > 0))[:, None]
    finish[full] = INFINITY
    if bool((finish.min(axis=1) == INFINITY).any()):
        raise DeadEnd("[schedule] expected memory for every task; try more memory_bytes")
