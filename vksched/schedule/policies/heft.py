"""HEFT: tasks by upward rank, each where it ends first, gaps included.

Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), 2002.
Complexity: edges * devices, times the gaps of partial_schedule.py. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import place_in_order
from ..model.problem import Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import TaskPlacement

OTHER_RANKS = ("fastest", "all links", "half links", "no links")
"""Ranks other than the paper's; each is the best for some graphs. See `rank_of`."""


def heft(problem: Problem, by: str = "means") -> TaskPlacement:
    """Return the schedule of HEFT with insertion.

    by: "means", as in the paper, or one of `OTHER_RANKS`.
    """
    return place_in_order(problem, by_rank(problem, rank_of(problem, by)))


def rank_of(problem: Problem, by: str) -> list[float]:
    """Return the upward rank of each task in seconds.

    by: "means" over devices and links; "fastest" with each task on its fastest device; "all links"
    with the mean over all pairs, including the free transfers of a device to itself; "half links"
    with half of the transfer times; "no links" without transfers.
    """
    if by == "fastest":
        return upward(problem, problem.least)
    latency, each = problem.mean_link
    parts = {"all links": 1 - 1 / problem.m, "half links": 0.5, "no links": 0.0}
    part = parts.get(by, 1.0)
    return upward(problem, link=(part * latency, part * each))
