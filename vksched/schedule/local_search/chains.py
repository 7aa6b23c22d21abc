"""Chains: tasks with heavy edges between them, which should change devices together.

    a ==> b ==> c       ==> carries more than half of all bytes that leave a, and of all that
      \\->   \\->  \\->           reach b: a heavy edge. A chain is a path of heavy edges

Example: the steps of a stencil, in which each part reads itself and a little of its neighbours. A
move of one task of a part would transfer the whole part to the other device and back. Every single
task therefore stays, even if all steps of the part together would be better on another device.
Layered graphs and trees have few heavy edges, and so few chains.

Source: Kim, Browne, "A general approach to mapping of parallel computations upon multiprocessor
architectures", ICPP 1988 (linear clustering); here the weight of an edge is relative to the bytes
of its two ends, and a kick of the search moves chains.
Complexity: tasks + edges. Examples: tests/schedule/test_improve.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.problem import Problem


class Chains:
    """The heavy edges of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.following = [-1] * problem.n
        """The task that a heavy edge leads to, or -1."""
        self.leading = [-1] * problem.n
        """The task that a heavy edge comes from, or -1."""
        for t, arcs in enumerate(problem.after):
            c = _heaviest(arcs)
            if c >= 0 and _heaviest(problem.before[c]) == t:
                self.following[t], self.leading[c] = c, t

    def around(self, v: int, device: Sequence[int]) -> list[int]:
        """Return a task and the adjacent tasks of its chain on the same device."""
        home, found = device[v], [v]
        for neighbours in (self.following, self.leading):
            t = neighbours[v]
            while t >= 0 and device[t] == home:
                found.append(t)
                t = neighbours[t]
        return found


def _heaviest(arcs: Sequence[tuple[int, float]]) -> int:
    """Return the other end of the edge with more than half of all bytes, or -1."""
    if not arcs:
        return -1
    other, most = max(arcs, key=lambda arc: arc[1])
    return other if 2 * most > sum(size for _, size in arcs) else -1
