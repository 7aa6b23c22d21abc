"""Clocks: how far the clock of another computer is ahead of one's own, and how well that is known.

    here   before_s ----.                         .----> after_s
    there                '--> came_s ... left_s --'
    the middle of both is taken for the same moment: off by at most half of the time on the way

Problem: an answer may have waited somewhere, and two clocks do not run at the same pace. Method:
clocks are asked again all the time. The bound of a measurement grows by DRIFT for each second that
passes, and the one whose bound is least now counts. The pace is that between the best measurements
of the earlier and of the later half; it counts where these bounds leave it no more room than DRIFT.
Complexity: O(MOST) for each question. Examples:
tests/distributed/test_clocks.py.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

DRIFT = 1e-4
"""Seconds that two clocks may come apart in each second, beside the pace that is measured."""
MAX_CLOCK_DRIFT = 1e-3
"""A pace that is measured as more is none of a clock."""
MIN_INTERVAL_S = 10.0
"""Between two measurements that tell a pace."""
MOST = 128
"""Measurements that are kept."""


class ClockSample(NamedTuple):
    """when_s: by one's own clock. error_s: how far offset_s may be off."""

    when_s: float
    offset_s: float
    error_s: float


class RemoteClock:
    """The clock of another computer. May be used from any number of threads."""

    def __init__(self) -> None:
        self._measured: deque[ClockSample] = deque(maxlen=MOST)
        self._pace = 0.0
        self._lock = threading.Lock()

    def note(self, before_s: float, came_s: float, left_s: float, after_s: float) -> None:
        """Take an answer. before_s, after_s: when it was asked for and was here, by the own clock.
        came_s, left_s: when the question was there and the answer went, by the other clock.
        """
        middle_s = (before_s + after_s) / 2
        way_s = max(0.0, after_s - before_s - (left_s - came_s))
        sample = ClockSample(middle_s, (came_s + left_s) / 2 - middle_s, way_s / 2)
        with self._lock:
            self._measured.append(sample)
            self._pace = _pace(list(self._measured))

    def estimate(self, now_s: float) -> ClockEstimate:
        """Return how times of the other clock are read, as well as is known when the own clock
        shows so much; before the first measurement nothing is known.
        """
        with self._lock:
            if not self._measured:
                return ClockEstimate(ClockSample(now_s, 0.0, float("inf")), 0.0)
            return ClockEstimate(
                min(self._measured, key=lambda each: _error_s(each, now_s)), self._pace
            )


class ClockEstimate(NamedTuple):
    """best: the measurement that counts. pace: seconds that the other clock gets ahead in each."""

    best: ClockSample
    pace: float

    def to_local_s(self, there_s: float) -> float:
        """Returns what the own clock showed when the other one showed so much."""
        when_s, offset_s, _ = self.best
        return when_s + (there_s - when_s - offset_s) / (1 + self.pace)

    def error_s(self, *local_s: float) -> float:
        """Return by how much that may be off at any of these times of the own clock."""
        return max(_error_s(self.best, each) for each in local_s)


def _error_s(measured: ClockSample, local_s: float) -> float:
    return measured.error_s + DRIFT * abs(local_s - measured.when_s)


def _pace(measured: list[ClockSample]) -> float:
    """Return by how many seconds it gets ahead in each; 0 where that cannot be told."""
    half = len(measured) // 2
    if not half:
        return 0.0
    first, last = (
        min(part, key=lambda m: m.error_s) for part in (measured[:half], measured[half:])
    )
    apart_s = last.when_s - first.when_s
    if apart_s < MIN_INTERVAL_S or first.error_s + last.error_s > DRIFT * apart_s:
        return 0.0
    found = (last.offset_s - first.offset_s) / apart_s
    return found if abs(found) <= MAX_CLOCK_DRIFT else 0.0
