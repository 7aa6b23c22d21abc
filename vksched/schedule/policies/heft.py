"""HEFT: tasks by upward rank, each where it ends first, also in gaps.

Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), 2002.
Complexity: edges * devices, and the gaps that partial.py keeps. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..model.partial_schedule import place_in_order
from ..model.problem import Problem
from ..model.ranks import by_rank, upward
from ..model.simulate_tasks import Placed

OTHER_RANKS = ("fastest", "all links", "half links", "no links")
"""Ranks beside the paper's; each is best somewhere. See `rank_of`."""


def heft(problem: Problem, by: str = "means") -> Placed:
    """Return the schedule of HEFT with insertion.

    by: "means", as in the paper, or one of `OTHER_RANKS`.
    """
    return place_in_order(problem, by_rank(problem, rank_of(problem, by)))


def rank_of(problem: Problem, by: str) -> list[float]:
    """Return the upward rank of each task in seconds.

    by: "means" of devices and links; "fastest" takes each task on its fastest device; "all links"
    takes the mean over all pairs, with those of a device to itself, which cost nothing; "half
    links" takes half of what a transfer takes, and "no links" nothing.
    """
    if by == "fastest":
        return upward(problem, problem.least)
    latency, each = problem.mean_link
    parts = {"all links": 1 - 1 / problem.m, "half links": 0.5, "no links": 0.0}
    part = parts.get(by, 1.0)
    return upward(problem, link=(part * latency, part * each))
