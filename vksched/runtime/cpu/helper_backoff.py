"""How many threads help the one that computes: fewer for a while after a helper has delayed it.

    delay 3 ms    24 ms with one fewer    all    delay soon after    48 ms with one fewer    all ...

Problem: other programs hold cores, in this container or in others, which no account of the system
shows. A helper that loses its core within a piece has the caller wait for milliseconds.
Method: the caller measures how long it waits; nothing else is needed. After a delay one helper
stays away for 8 times as long, so delays add an eighth. If the next delay follows soon, it stays
away for twice as long as the last time, as a core that is taken stays so. If a delay comes
meanwhile, more stay away: 3, 7, 15. RunResult do not depend on it.
Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DELAY_S = 3e-4
"""A wait that is longer than the longest piece by this is a delay, as in
native/cpu_kernels/program/program.cpp. A helper's pieces count by the time of its core: one that is
slower than the caller's delays nobody, one that is lost does.
"""
ALONE = 8
MAX_S = 0.5
"""So long helpers stay away at most: the load may be gone by then."""


class Pauses:
    """How many helpers there may be. Safe to ask and to tell from any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until_s = -float("inf")
        self._last_s = 0.0
        self._away = 0

    def helpers(self, most: int) -> int:
        """Return how many of so many threads should help now."""
        return max(0, most - self._away) if self._clock() < self._until_s else most

    def tell(self, delayed_s: float) -> None:
        """Keep helpers away where they have delayed their caller; 0 s: they have not."""
        if delayed_s <= 0:
            return
        now_s = self._clock()
        meanwhile, soon = now_s < self._until_s, now_s - self._until_s < self._last_s
        self._away = 2 * self._away + 1 if meanwhile else self._away if soon else 1
        self._last_s = min(MAX_S, max(ALONE * delayed_s, 2 * self._last_s if soon else 0.0))
        self._until_s = now_s + self._last_s


of_process = Pauses()
"""Of all devices: they compute on the same cores."""
