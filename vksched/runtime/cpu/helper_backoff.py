"""Helper backoff: use fewer helper threads for a while after one has delayed the calling thread.

    delay 3 ms    24 ms with one fewer    all    delay soon after    48 ms with one fewer    all ...

Problem: other programs use cores, in this container or in others, which system statistics do not
show. If a helper is preempted within a piece, the calling thread waits for milliseconds. Method:
the calling thread measures how long it waits. After a delay, one helper less is used for 8 times as
long, so delays add an eighth. If the next delay follows soon, the pause is twice the last one,
because the load probably persists. If a delay occurs during a pause, more helpers pause: 3, 7, 15.
Results do not depend on it. Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DELAY_S = 3e-4
"""A wait that exceeds the longest piece by this is a delay, as in
native/cpu_kernels/program/program.cpp. Pieces of helpers count in CPU time: a slower core is no
delay, a preemption is.
"""
ALONE = 8
MAX_S = 0.5
"""Maximum pause: the load may have ended by then."""


class HelperBackoff:
    """The number of allowed helpers. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until_s = -float("inf")
        self._last_s = 0.0
        self._away = 0

    def helpers(self, max_count: int) -> int:
        """Return the number of helpers to use now, at most `max_count`."""
        return max(0, max_count - self._away) if self._clock() < self._until_s else max_count

    def tell(self, delayed_s: float) -> None:
        """Record the delay by helpers in seconds; 0 if there was none."""
        if delayed_s <= 0:
            return
        now_s = self._clock()
        meanwhile, soon = now_s < self._until_s, now_s - self._until_s < self._last_s
        self._away = 2 * self._away + 1 if meanwhile else self._away if soon else 1
        self._last_s = min(MAX_S, max(ALONE * delayed_s, 2 * self._last_s if soon else 0.0))
        self._until_s = now_s + self._last_s


of_process = HelperBackoff()
"""Shared by all devices, because they compute on the same cores."""
