"""Lines: stretches of time on as few lines as there are, at any moment, stretches side by side."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

MIN_S = 1e-12
"""Sums of times are off by less."""


def lines_of(stretches: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Return lines of positions of (start, end), each in the order of time and without overlaps;
    one empty line where there is nothing.
    """
    lines: list[list[int]] = [[]]
    busy: list[tuple[float, int]] = []
    free = [0]
    for at in sorted(range(len(stretches)), key=lambda at: stretches[at]):
        start_s, end_s = stretches[at]
        while busy and busy[0][0] <= start_s + MIN_S:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(lines))
            lines.append([])
        line = heapq.heappop(free)
        lines[line].append(at)
        heapq.heappush(busy, (end_s, line))
    return lines
