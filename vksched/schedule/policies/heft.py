"""HEFT: tasks by upward rank, each where it ends first, also in gaps.

Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), 2002.
Complexity: edges * devices, and the gaps that partial.py keeps. Examples:
tests/schedule/test_policies.py.
"""

from __future__ import annotations

from ..partial import place_in_order
from ..problem import Problem
from ..ranks import by_rank, upward
from ..simulate import Placed


def heft(problem: Problem) -> Placed:
    """Returns the schedule of HEFT with insertion."""
    return place_in_order(problem, by_rank(problem, upward(problem)))
