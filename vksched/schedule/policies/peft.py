"""PEFT: each task on the device with the earliest sum of its end and the least remaining time.

    table[t][d] = longest over consumers c of the least over devices e of
                  table[c][e] + seconds of c on e + (transfer if e is not d)

Source: Arabnejad, Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic
cost table", IEEE TPDS 25(3), 2014.
Complexity: edges * devices, times the gaps of partial_schedule.py. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model.partial_schedule import place_in_order
from ..model.problem import Problem
from ..model.ranks import by_rank
from ..model.simulate_tasks import TaskPlacement


def peft(problem: Problem) -> TaskPlacement:
    """Return the schedule of PEFT with insertion."""
    table = optimistic(problem)
    rank: list[float] = table.mean(axis=1).tolist() if problem.n else []
    follow: list[list[float]] = table.tolist()
    return place_in_order(problem, by_rank(problem, rank), extra=follow.__getitem__)


def optimistic(problem: Problem) -> NDArray[np.float64]:
    """Return the optimistic cost table: the least remaining seconds, (tasks, devices)."""
    latency, each = problem.mean_link
    table = np.zeros((problem.n, problem.m))
    whole = np.zeros((problem.n, problem.m))
    least = np.zeros(problem.n)
    for t in reversed(problem.order):
        row = table[t]
        for c, size in problem.after[t]:
            np.maximum(row, np.minimum(whole[c], least[c] + latency + size * each), out=row)
        np.add(row, problem.rows[problem.kind[t]], out=whole[t])
        least[t] = whole[t].min()
    return table
