"""Clock synchronization: estimate the offset of a remote clock, with an error bound.

    local    before_s ----.                         .----> after_s
    remote                '--> came_s ... left_s --'

    the midpoints are taken as simultaneous; the error is at most half of the network time

Problem: an answer may be delayed anywhere, and two clocks drift. Method: query the clocks
periodically. The error bound of a sample grows by DRIFT per second of age, and the sample with the
lowest bound counts. The drift rate is measured between the best samples of the earlier and of the
later half; it counts if the bounds of these samples limit it more closely than DRIFT.

Complexity: O(MOST) per sample. Examples: tests/distributed/test_clocks.py.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

DRIFT = 1e-4
"""Maximum residual drift in seconds per second, after correction by the measured rate."""
MAX_CLOCK_DRIFT = 1e-3
"""Measured rates above this limit are rejected."""
MIN_INTERVAL_S = 10.0
"""Minimum interval between two samples that determine a drift rate."""
MOST = 128
"""Maximum number of stored samples."""


class ClockSample(NamedTuple):
    """when_s: local time. error_s: error bound of offset_s."""

    when_s: float
    offset_s: float
    error_s: float


class RemoteClock:
    """The clock of a remote host. Thread-safe."""

    def __init__(self) -> None:
        self._measured: deque[ClockSample] = deque(maxlen=MOST)
        self._pace = 0.0
        self._lock = threading.Lock()

    def note(self, before_s: float, came_s: float, left_s: float, after_s: float) -> None:
        """Add a sample. before_s, after_s: local times of the request and of the response. came_s,
        left_s: remote times of the arrival of the request and of the response.
        """
        middle_s = (before_s + after_s) / 2
        way_s = max(0.0, after_s - before_s - (left_s - came_s))
        sample = ClockSample(middle_s, (came_s + left_s) / 2 - middle_s, way_s / 2)
        with self._lock:
            self._measured.append(sample)
            self._pace = _pace(list(self._measured))

    def estimate(self, now_s: float) -> ClockEstimate:
        """Return the best estimate at a local time; before the first sample the error is
        infinite.
        """
        with self._lock:
            if not self._measured:
                return ClockEstimate(ClockSample(now_s, 0.0, float("inf")), 0.0)
            return ClockEstimate(
                min(self._measured, key=lambda each: _error_s(each, now_s)), self._pace
            )


class ClockEstimate(NamedTuple):
    """best: sample with the lowest error bound. pace: drift rate of the remote clock, in seconds
    per second.
    """

    best: ClockSample
    pace: float

    def to_local_s(self, there_s: float) -> float:
        """Return the local time of a remote time."""
        when_s, offset_s, _ = self.best
        return when_s + (there_s - when_s - offset_s) / (1 + self.pace)

    def error_s(self, *local_s: float) -> float:
        """Return the error bound over a range of local times."""
        return max(_error_s(self.best, each) for each in local_s)


def _error_s(measured: ClockSample, local_s: float) -> float:
    return measured.error_s + DRIFT * abs(local_s - measured.when_s)


def _pace(measured: list[ClockSample]) -> float:
    """Return the drift rate in seconds per second, or 0 if the samples do not determine it."""
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
