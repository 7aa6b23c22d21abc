"""Lane packing: time intervals on the least number of lanes without overlaps."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

MIN_S = 1e-12
"""Tolerance for rounding of sums of times."""


def pack_lanes(intervals: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Return lanes of positions of (start, end) intervals, each in the order of time and without
    overlaps; one empty lane for no intervals.
    """
    lines: list[list[int]] = [[]]
    busy: list[tuple[float, int]] = []
    free = [0]
    for at in sorted(range(len(intervals)), key=lambda at: intervals[at]):
        start_s, end_s = intervals[at]
        while busy and busy[0][0] <= start_s + MIN_S:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(lines))
            lines.append([])
        line = heapq.heappop(free)
        lines[line].append(at)
        heapq.heappush(busy, (end_s, line))
    return lines
