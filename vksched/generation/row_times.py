"""RowTimes: which graphs decode a token of several slots in the least measured time.

5 slots: graphs of 4 and 1 rows, or one of 8 rows of which 3 are idle
"""

from __future__ import annotations

from collections.abc import Sequence

NEWEST = 0.2
"""The weight of the newest run in the measured time of a graph."""
SLOW = 1.5
"""The maximum of a run's time, in measured times of its graph: other programs may have run."""
DOUBT = 1e-3
"""The part of its time by which a graph gets cheaper with each plan that does not use it.

So a graph whose time was measured on a busy machine is measured again.
"""


class RowTimes:
    """The measured times of decode graphs, by their rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._unused: dict[int, int] = {}
        """The number of plans that did without a graph since it was measured."""

    def measure(self, rows: int, seconds: float) -> None:
        """Take the time of a run of a decode graph into account. A shorter time replaces one that
        is in doubt.
        """
        old = self._seconds.get(rows, seconds)
        if self._unused.pop(rows, 0):
            old = min(old, seconds)
        self._seconds[rows] = old + NEWEST * (min(seconds, SLOW * old) - old)

    def plan(self, count: int, row_counts: Sequence[int]) -> tuple[int, ...]:
        """Return the rows of the graphs that decode a token of `count` slots: the combination with
        the least measured time. Without measurements: the largest graphs first, then the smallest
        one with as many rows.

        row_counts: the rows of all graphs, ascending.
        """
        known = [rows for rows in row_counts if rows in self._seconds]
        if known != list(row_counts):
            largest = row_counts[-1]
            whole, rest = divmod(count, largest)
            fitting = [rows for rows in row_counts if rows >= rest > 0]
            return (largest,) * whole + tuple(fitting[:1])
        expected = {rows: self._expected_s(rows) for rows in known}
        plans: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for number in range(1, count + 1):
            before = {rows: plans[max(0, number - rows)] for rows in known}
            least = min(known, key=lambda rows: before[rows][0] + expected[rows])
            seconds, others = before[least]
            plans.append((seconds + expected[least], (*others, least)))
        plan = plans[count][1][::-1]
        self._doubt_others(plan, count, known)
        return plan

    def _expected_s(self, rows: int) -> float:
        return self._seconds[rows] * max(0.0, 1 - DOUBT * self._unused.get(rows, 0))

    def _doubt_others(self, plan: Sequence[int], count: int, known: Sequence[int]) -> None:
        """Count the plan for the graphs of which one or two could replace it: not those with more
        idle rows than another, and not those with few rows, whose runs would take long together.
        """
        fitting = next((rows for rows in known if rows >= count), known[-1])
        for rows in known:
            if min(count, fitting) <= 2 * rows <= 2 * fitting and rows not in plan:
                self._unused[rows] = self._unused.get(rows, 0) + 1

    def clear(self) -> None:
        """Forget all times."""
        self._seconds.clear()
        self._unused.clear()
