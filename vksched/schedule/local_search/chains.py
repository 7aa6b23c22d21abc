"""Chains: tasks that want to share a device, so that they change devices together or not at all.

    a ==> b ==> c       ==> carries more than half of all bytes that leave a, and of all that
      \\->   \\->  \\->           reach b: a heavy edge. A chain is a path of heavy edges

Take the steps of a stencil: each part reads itself and a little of its neighbours. To leave its
device, one task of a part must send the whole part there and back. So every task stays, even where
all steps of the part together would be better off elsewhere. Layered graphs and trees have few
heavy edges, and so no chains.

Source: Kim, Browne, "A general approach to mapping of parallel computations upon multiprocessor
architectures", ICPP 1988 (linear clustering); here an edge is heavy by what its two ends exchange,
and chains are what a kick of the search moves.
Complexity: tasks + edges. Examples: tests/schedule/test_improve.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.problem import Problem


class Chains:
    """The heavy edges of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.following = [-1] * problem.n
        """The task that a heavy edge leads to; -1 if there is none."""
        self.leading = [-1] * problem.n
        """The task that a heavy edge comes from."""
        for t, arcs in enumerate(problem.after):
            c = _heaviest(arcs)
            if c >= 0 and _heaviest(problem.before[c]) == t:
                self.following[t], self.leading[c] = c, t

    def around(self, v: int, device: Sequence[int]) -> list[int]:
        """Return a task and those of its chain that follow and lead on the same device."""
        home, found = device[v], [v]
        for neighbours in (self.following, self.leading):
            t = neighbours[v]
            while t >= 0 and device[t] == home:
                found.append(t)
                t = neighbours[t]
        return found


def _heaviest(arcs: Sequence[tuple[int, float]]) -> int:
    """Return the other end of the edge with more than half of all bytes; -1 if there is none."""
    if not arcs:
        return -1
    other, most = max(arcs, key=lambda arc: arc[1])
    return other if 2 * most > sum(size for _, size in arcs) else -1
